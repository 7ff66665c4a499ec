// Report of ptxas on the kernels as they are built (kernels/gpu/ptxas_report.sh).

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path);
  CAPTURE(path);
  REQUIRE(file);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t Count(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  return static_cast<size_t>(
      std::distance(std::sregex_iterator(text.begin(), text.end(), regex), {}));
}

TEST_SUITE("unit") {
  TEST_CASE("ptxas: no kernel spills") {
    const std::string suffix = ".cu.o";
    std::istringstream objects(CF_OBJECTS);
    std::string object;
    int files = 0;
    while (std::getline(objects, object, ':')) {
      if (object.size() < suffix.size() ||
          object.compare(object.size() - suffix.size(), suffix.size(), suffix) != 0) {
        continue;
      }
      CAPTURE(object);
      ++files;
      const std::string folder = "_kernels.dir/";
      const size_t name = object.find(folder) + folder.size();
      const std::string source =
          std::string(CF_TEST_DIR) + "/../kernels/" + object.substr(name, object.size() - name - 2);
      const std::string report = Read(object + ".ptxas");
      const size_t entries = Count(report, "Compiling entry function '[^']+' for 'sm_90a'");
      CHECK(entries >= 1);
      CHECK(entries >= Count(Read(source), "(^|\n)(template[^\n]*\n)?__global__ "));
      // Functions that are not inlined are reported like entries.
      const std::string properties = "Function properties for ";
      CHECK(Count(report, properties) >= entries);
      CHECK(Count(report, "[0-9]+ bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") ==
            Count(report, properties));
      CHECK(Count(report, "Potential Performance Loss|serialized") == 0);
    }
    CHECK(files >= 1);
  }
}

}  // namespace
