#include "tools/contraflow-run/build_id.h"

#include <link.h>

#include <cstdint>
#include <cstring>

namespace contraflow {
namespace {

uint64_t Padded(uint64_t size) { return (size + 3) & ~uint64_t{3}; }

/// Looks for the note NT_GNU_BUILD_ID in a segment of notes.
std::string FindBuildId(const char* notes, uint64_t size) {
  uint64_t at = 0;
  while (at + sizeof(ElfW(Nhdr)) <= size) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes + at, sizeof note);
    const uint64_t name = at + sizeof note;
    const uint64_t content = name + Padded(note.n_namesz);
    const uint64_t next = content + Padded(note.n_descsz);
    if (next > size) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
        std::memcmp(notes + name, "GNU", 4) == 0) {
      std::string text;
      for (uint64_t i = 0; i < note.n_descsz; ++i) {
        const auto byte = static_cast<unsigned char>(notes[content + i]);
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
      }
      return text;
    }
    at = next;
  }
  return "";
}

/// The first object that is asked for is the program itself.
int TakeFirst(dl_phdr_info* info, size_t, void* result) {
  auto& id = *static_cast<std::string*>(result);
  for (int i = 0; i < info->dlpi_phnum && id.empty(); ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const uint64_t address = info->dlpi_addr + segment.p_vaddr;
    id = FindBuildId(reinterpret_cast<const char*>(address), segment.p_filesz);
  }
  return 1;
}

}  // namespace

std::string BuildId() {
  std::string id;
  dl_iterate_phdr(TakeFirst, &id);
  return id.empty() ? "unknown" : id;
}

}  // namespace contraflow
