// transcript_test BIN FILE.md: runs the ```console blocks of a Markdown file with BIN first on PATH
// and compares what they print, so that every example in it is true. CF_BLESS=1 writes what they
// print.

#include <cstdio>
#include <exception>
#include <string>

#include "tests/support/transcript.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: transcript_test BIN FILE.md\n");
    return 2;
  }
  try {
    const std::string report =
        contraflow::CheckFile(argv[2], argv[1], contraflow::TranscriptStyle::kReadme);
    std::fputs(report.c_str(), stderr);
    return report.empty() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "transcript_test: %s\n", error.what());
    return 1;
  }
}
