#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "compiler/plan/access.h"

namespace contraflow {

/// Whether bytes that hold no value are filled with NaN unless a caller wants otherwise: in builds
/// with assertions.
#ifdef NDEBUG
inline constexpr bool kFillUnused = false;
#else
inline constexpr bool kFillUnused = true;
#endif

/// True in builds with the address sanitizer, where to touch poisoned bytes ends the program.
bool PoisonIsFatal();

/// Forbids to touch the bytes, a multiple of 8: the address sanitizer, in builds that have it,
/// tells who does. With `fill` they are filled with floats that are NaN first, which as integers
/// are no index either.
void Poison(std::byte* bytes, size_t count, bool fill);
/// Allows to touch them again; what they hold stays.
void Unpoison(std::byte* bytes, size_t count);

/// The memory of the values of one device. A value lives from the instruction that makes it to the
/// last of those that were expected to touch it before it is made again, once a step or, where its
/// chunk is recomputed, twice. Its bytes come from the heap, or lie
/// where the slots of a plan say; the rest of the arenas is poisoned. A value that is asked for and
/// not there, or made twice, is an Error. Used by one thread at a time.
class ValueStore {
 public:
  /// `bytes` of each value; with `fill` they are NaN until something is written to them.
  explicit ValueStore(const ValueBytes& bytes, bool fill = kFillUnused);
  ValueStore(const ValueStore&) = delete;
  ~ValueStore();

  /// Announces that an instruction of the program touches a value; in the order of the program.
  void Expect(const Access& access);
  /// From now on the values lie where the slots say, in one allocation for each arena; nothing else
  /// is allocated any more. Called behind the last Expect. Throws Error unless every value has a
  /// slot of exactly its bytes; `model` is the name of the model for the message.
  void Place(const std::vector<Slot>& slots, const std::string& model);

  /// Forgets what an unfinished step has left.
  void BeginStep();
  /// The value's bytes, for one instruction that touches it.
  std::byte* Touch(const Access& access);
  /// That instruction has ended.
  void Leave(const Access& access);
  /// Throws Error if a value is left over.
  void EndStep() const;

  /// Bytes of the allocation for each arena; 0 where values come from the heap.
  const std::array<int64_t, kArenaCount>& arena_bytes() const { return arena_bytes_; }

 private:
  struct Key {
    int32_t stage, microbatch;
    int16_t layer;
    Value value;

    auto operator<=>(const Key&) const = default;
  };
  /// From one making of a value to its last use.
  struct Life {
    int uses = 0;  // instructions that touch it
    std::byte* bytes = nullptr;
  };
  struct Entry {
    std::vector<Life> lives;
    size_t life = 0;  // the present one, or, while it is not alive, the next one
    int left = 0;     // of its uses those that have not ended yet
    bool alive = false;
    Life& now() { return lives[life]; }
  };
  struct Free {
    void operator()(std::byte* bytes) const {
      ::operator delete (bytes, std::align_val_t{kSlotAlignment});
    }
  };

  static Key KeyOf(const Access& access) {
    return {access.stage, access.microbatch, access.layer, access.value};
  }
  static std::string Describe(const Key& key);
  size_t BytesOf(const Key& key) const {
    return static_cast<size_t>(bytes_[static_cast<size_t>(key.value)]);
  }
  Entry& At(const Access& access);
  static bool Awaits(const Entry& entry) { return entry.life < entry.lives.size(); }
  void Begin(const Key& key, Entry* entry);
  void End(const Key& key, Entry* entry);

  const ValueBytes bytes_;
  const bool fill_;
  bool placed_ = false;
  std::map<Key, Entry> entries_;
  std::array<std::unique_ptr<std::byte, Free>, kArenaCount> arenas_;
  std::array<int64_t, kArenaCount> arena_bytes_{};
};

}  // namespace contraflow
