// transcript_test BIN FILE.md: runs the ```console blocks of a Markdown file with BIN first on PATH
// and compares what they print, so that every example in it is true.

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "tests/transcript.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: transcript_test BIN FILE.md\n");
    return 2;
  }
  try {
    const std::string path = argv[2];
    const contraflow::Transcript transcript = contraflow::ParseMarkdown(contraflow::ReadText(path));
    if (transcript.steps.empty()) throw std::runtime_error(path + ": has no console block");
    const std::string report = contraflow::RunTranscript(
        transcript, path, argv[1], contraflow::TranscriptStyle::kReadme, nullptr);
    std::fputs(report.c_str(), stderr);
    std::printf("%zu commands, %s\n", transcript.steps.size(),
                report.empty() ? "all as shown" : "some differ");
    return report.empty() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "transcript_test: %s\n", error.what());
    return 1;
  }
}
