#include "runtime/host/value_store.h"

#include <algorithm>
#include <cstdint>

#include "compiler/plan/error.h"

#if defined(__SANITIZE_ADDRESS__)
#define CF_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CF_ADDRESS_SANITIZER 1
#endif
#endif

#ifdef CF_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace contraflow {
namespace {

/// A quiet NaN as a float, more than any count or index as an integer.
constexpr uint32_t kNothing = 0x7fc0dead;

}  // namespace

bool PoisonIsFatal() {
#ifdef CF_ADDRESS_SANITIZER
  return true;
#else
  return false;
#endif
}

void Poison(std::byte* bytes, size_t count, bool fill) {
  if (fill) std::fill_n(reinterpret_cast<uint32_t*>(bytes), count / sizeof(uint32_t), kNothing);
#ifdef CF_ADDRESS_SANITIZER
  ASAN_POISON_MEMORY_REGION(bytes, count);
#endif
}

void Unpoison(std::byte* bytes, size_t count) {
#ifdef CF_ADDRESS_SANITIZER
  ASAN_UNPOISON_MEMORY_REGION(bytes, count);
#else
  static_cast<void>(bytes);
  static_cast<void>(count);
#endif
}

namespace {

std::byte* Allocate(size_t bytes) {
  return static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kSlotAlignment}));
}

/// Values that only the instruction touches that makes them.
bool IsScratch(Value value) {
  return value == Value::dcombined || value == Value::ddispatched || value == Value::attention_work;
}

}  // namespace

ValueStore::ValueStore(const ValueBytes& bytes, bool fill) : bytes_(bytes), fill_(fill) {}

ValueStore::~ValueStore() {
  if (!placed_) {
    BeginStep();
    return;
  }
  for (size_t a = 0; a < kArenaCount; ++a) {
    Unpoison(arenas_[a].get(), static_cast<size_t>(arena_bytes_[a]));
  }
}

std::string ValueStore::Describe(const Key& key) {
  return std::string(Name(key.value)) + " of stage " + std::to_string(key.stage) + ", layer " +
         std::to_string(key.layer) + ", micro-batch " + std::to_string(key.microbatch);
}

void ValueStore::Expect(const Access& access) {
  Entry& entry = entries_[KeyOf(access)];
  // What is touched before it is made is told when that happens.
  if (access.makes || entry.lives.empty()) entry.lives.emplace_back();
  ++entry.lives.back().uses;
}

void ValueStore::Place(const std::vector<Slot>& slots, const std::string& model) {
  const auto require = [&](const Key& key, int64_t bytes) {
    const auto needed = static_cast<int64_t>(BytesOf(key));
    if (bytes == needed) return;
    throw Error("this plan was compiled for another model: value " + std::string(Name(key.value)) +
                " has " + std::to_string(bytes) + " bytes, model \"" + model + "\" needs " +
                std::to_string(needed) + "; compile it with `model` " + model +
                " `device` cpu, and with the `capacity` it is to run with");
  };
  placed_ = true;
  arena_bytes_ = ArenaBytes(slots);
  for (size_t a = 0; a < kArenaCount; ++a) {
    if (arena_bytes_[a] == 0) continue;
    arenas_[a].reset(Allocate(static_cast<size_t>(arena_bytes_[a])));
    Poison(arenas_[a].get(), static_cast<size_t>(arena_bytes_[a]), fill_);
  }
  for (const Slot& slot : slots) {
    const Key key = {slot.stage, slot.microbatch, slot.layer, slot.value};
    require(key, slot.bytes);
    const auto entry = entries_.find(key);
    // Slots are in the order of first use: those of one value in the order of its lives.
    if (entry == entries_.end() || !Awaits(entry->second)) {
      throw Error("the plan has a slot for the " + Describe(key) +
                  ", which no instruction of the rank touches; verify the plan");
    }
    entry->second.lives[entry->second.life++].bytes =
        arenas_[static_cast<size_t>(slot.arena)].get() + slot.offset;
  }
  for (const auto& [key, entry] : entries_) {
    if (Awaits(entry)) require(key, 0);
  }
}

void ValueStore::Begin(const Key& key, Entry* entry) {
  std::byte*& bytes = entry->now().bytes;
  entry->alive = true;
  entry->left = entry->now().uses;
  if (placed_) return Unpoison(bytes, BytesOf(key));
  bytes = Allocate(BytesOf(key));
  if (!fill_) return;
  Poison(bytes, BytesOf(key), true);
  Unpoison(bytes, BytesOf(key));
}

void ValueStore::End(const Key& key, Entry* entry) {
  std::byte*& bytes = entry->now().bytes;
  entry->alive = false;
  ++entry->life;
  if (placed_) return Poison(bytes, BytesOf(key), fill_);
  Free()(bytes);
  bytes = nullptr;
}

void ValueStore::BeginStep() {
  for (auto& [key, entry] : entries_) {
    if (entry.alive) End(key, &entry);
    entry.life = 0;
  }
}

ValueStore::Entry& ValueStore::At(const Access& access) {
  const auto entry = entries_.find(KeyOf(access));
  if (entry != entries_.end() && (entry->second.alive || (access.makes && Awaits(entry->second)))) {
    return entry->second;
  }
  throw Error("the " + Describe(KeyOf(access)) + " is not on this rank; verify the plan");
}

std::byte* ValueStore::Touch(const Access& access) {
  const Key key = KeyOf(access);
  Entry& entry = At(access);
  if (access.makes) {
    if (entry.alive) throw Error("the " + Describe(key) + " is here already; verify the plan");
    Begin(key, &entry);
  }
  return entry.now().bytes;
}

void ValueStore::Leave(const Access& access) {
  Entry& entry = At(access);
  if (--entry.left > 0) return;
  // Of what was made for others and no other touches EndStep tells, but it may be made again.
  const bool last = entry.life + 1 == entry.lives.size();
  if (access.makes && last && !IsScratch(access.value)) return;
  End(KeyOf(access), &entry);
}

void ValueStore::EndStep() const {
  for (const auto& [key, entry] : entries_) {
    if (entry.alive) throw Error("the " + Describe(key) + " was never used; verify the plan");
  }
}

}  // namespace contraflow
