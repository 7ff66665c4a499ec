#include "runtime/checkpoint/checkpoint.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "compiler/files/file.h"
#include "runtime/checkpoint/folder.h"
#include "tests/runtime/checkpoint/support.h"
#include "tests/support/failure.h"

namespace contraflow::checkpoint_test {
namespace {

namespace fs = std::filesystem;

/// The newest checkpoint of a folder, which must be there.
Checkpoint OpenNewest(const CheckpointFolder& folder) {
  std::optional<Checkpoint> checkpoint = Checkpoint::Open(folder.path(), std::nullopt);
  REQUIRE(checkpoint.has_value());
  return *std::move(checkpoint);
}

/// A folder with checkpoints of steps 2 and 4, and the model in two devices.
struct Trained {
  CheckpointFolder folder;
  CutModel cut{CheckpointModel(), 2, 1};

  Trained() {
    PrepareCheckpoints(folder.path());
    for (const int step : {2, 4}) {
      cut.Set(step);
      cut.Save(folder.path(), step);
    }
  }

  /// "", or why step 4 is refused; then the model must not have changed.
  std::string Refusal() {
    cut.Set(9);
    const std::string failure = Failure([&] { OpenNewest(folder).Load(cut.All()); });
    CHECK(cut.Wrong(failure == "accepted" ? 4 : 9) == "");
    return failure;
  }
  /// Text after the reason.
  std::string Older() const {
    return "; older checkpoints in " + folder.path() +
           " are of step 2: `resume_step` 2 resumes from that one";
  }
};

TEST_SUITE("unit") {
  TEST_CASE("checkpoint: any cut of the model goes on from any other bit for bit") {
    const Model model = CheckpointModel();
    int step = 0;
    for (const int stages : {1, 2, 4, 8}) {
      for (const int members : {1, 2, 4}) {
        const CheckpointFolder folder;
        PrepareCheckpoints(folder.path());
        CutModel saved(model, stages, members);
        saved.Set(++step);
        saved.Save(folder.path(), step);
        const Checkpoint checkpoint = OpenNewest(folder);
        CHECK(checkpoint.head().step == step);
        for (const int other_stages : {1, 2, 4, 8}) {
          for (const int other_members : {1, 2, 4}) {
            CAPTURE(stages);
            CAPTURE(members);
            CAPTURE(other_stages);
            CAPTURE(other_members);
            CutModel loaded(model, other_stages, other_members);
            for (size_t d = 0; d < loaded.devices(); ++d) checkpoint.Load(loaded.All(d));
            CHECK(loaded.Wrong(step) == "");
          }
        }
      }
    }
  }

  TEST_CASE("checkpoint: blocks larger than a piece of reading or writing come back") {
    const CheckpointFolder folder;
    PrepareCheckpoints(folder.path());
    Model model = CheckpointModel();
    model.layers = 1;
    model.width = 192;
    model.vocabulary = 2048;  // An embedding of 1.5 MiB.
    CutModel saved(model, 1, 1), loaded(model, 1, 1);
    saved.Set(3);
    saved.Save(folder.path(), 3);
    OpenNewest(folder).Load(loaded.All());
    CHECK(loaded.Wrong(3) == "");
  }

  TEST_CASE("checkpoint: pages that a disk does not take without a copy are written all the same") {
    const fs::path path = fs::temp_directory_path() / ("pages-" + std::to_string(getpid()));
    const std::string bytes(3 * 4096, 'x');
    const std::span<const std::byte> all = std::as_bytes(std::span(bytes));
    {
      OutputFile file(path);
      file.Write("begin");
      file.WriteThrough(all.subspan(1, 4096));  // neither these bytes are aligned nor their place
      file.WriteThrough(all.first(7));
      file.Write("end");
      file.Close();
      CHECK(file.size() == 5 + 4096 + 7 + 3);
    }
    CHECK(ReadBytes(path) == "begin" + std::string(4096 + 7, 'x') + "end");
    fs::remove(path);
  }

  TEST_CASE("checkpoint: only what is asked for is read") {
    Trained t;
    std::string bytes = ReadBytes(t.folder.File(4, 1));
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    WriteBytes(t.folder.File(4, 1), bytes);
    const Checkpoint checkpoint = OpenNewest(t.folder);
    t.cut.Set(9);
    CHECK(Failure([&] { checkpoint.Load(t.cut.All(0)); }) == "accepted");
    CHECK(Failure([&] { checkpoint.Load(t.cut.All(1)); }) != "accepted");
  }

  TEST_CASE("checkpoint: no byte of a shard can change") {
    Trained t;
    CHECK(t.Refusal() == "accepted");
    for (const int shard : {0, 1}) {
      const std::string file = t.folder.File(4, shard), whole = ReadBytes(file);
      // All of the head, then a sample that meets every block.
      for (size_t i = 0; i < whole.size(); i += i < 64 ? 1 : 509) {
        CAPTURE(shard);
        CAPTURE(i);
        std::string changed = whole;
        changed[i] = static_cast<char>(changed[i] ^ (1 << i % 8));
        WriteBytes(file, changed);
        const std::string refusal = t.Refusal();
        CHECK(refusal.starts_with(
            file + (i < 64 ? ": does not begin with `" : ": the values of block \"")));
        CHECK(refusal.ends_with(t.Older()));
      }
      WriteBytes(file, whole);
    }
    CHECK(t.Refusal() == "accepted");
  }

  TEST_CASE("checkpoint: files that are missing cut off too many or of another are refused") {
    Trained t;
    const auto refused = [&](const std::string& name, const std::string& what) {
      CHECK(t.Refusal() == name + what + t.Older());
    };
    const std::string file = t.folder.File(4, 1), whole = ReadBytes(file);
    const std::string size = std::to_string(whole.size());
    for (const std::string& changed : {whole.substr(1), whole + "x"}) {
      WriteBytes(file, changed);
      refused(file,
              ": has " + std::to_string(changed.size()) + " bytes, but was written with " + size);
    }
    fs::remove(file);
    refused(file, ": is missing");
    fs::create_directory(file);
    refused(file, ": is not a regular file");
    fs::remove(file);
    WriteBytes(file, ReadBytes(t.folder.File(2, 1)));
    const std::string end = "is damaged, or belongs to another checkpoint";
    refused(file, ": does not begin with `contraflow shard-0001 of step-00000004`; it " + end);
    // The same step of another training is seen by the checksums.
    const CheckpointFolder elsewhere;
    PrepareCheckpoints(elsewhere.path());
    t.cut.Set(5);
    t.cut.Save(elsewhere.path(), 4);
    WriteBytes(file, ReadBytes(elsewhere.File(4, 1)));
    refused(file,
            ": the values of block \"layer 4 attention_norm\" have changed since they were saved: "
            "their checksum differs; the shard " +
                end);
    WriteBytes(file, whole);
    CHECK(t.Refusal() == "accepted");

    const std::string manifest = t.folder.File(4);
    WriteBytes(manifest, ReadBytes(t.folder.File(2)));
    refused(manifest, ": is of step 2, the folder of step 4; files of two checkpoints are mixed");
    WriteBytes(manifest, "");
    refused(manifest, ": is damaged: its first line is not the SHA-256 of what follows");
    fs::remove(manifest);
    refused(manifest, ": is missing");
  }

  TEST_CASE("checkpoint: an older one is used when it is asked for and only then") {
    Trained t;
    fs::remove(t.folder.File(4));
    CHECK(t.Refusal() != "accepted");
    const auto asked = Checkpoint::Open(t.folder.path(), 2);
    REQUIRE(asked.has_value());
    asked->Load(t.cut.All());
    CHECK(t.cut.Wrong(2) == "");
    CHECK_FALSE(Checkpoint::Open(t.folder.path(), 3).has_value());
    fs::remove(t.folder.File(2));
    CHECK(Failure([&] { Checkpoint::Open(t.folder.path(), 2); }) ==
          t.folder.File(2) + ": is missing; there is no older checkpoint in " + t.folder.path());
    CHECK_FALSE(Checkpoint::Open(t.folder.path() + "/none", std::nullopt).has_value());
    CHECK_FALSE(Checkpoint::Open(t.folder.root.string(), std::nullopt).has_value());
  }

  TEST_CASE("checkpoint: one of another training is refused with both values") {
    Trained t;
    const Checkpoint checkpoint = OpenNewest(t.folder);
    const Model model = CheckpointModel();
    const std::string text(64, 'a'), other(64, 'b');
    const std::string end = ", or use another `checkpoint` folder";
    const auto refusal = [&](uint64_t seed, const Model& m, const std::string& sha) {
      return Failure([&] { checkpoint.RequireSame(seed, m, sha); });
    };
    CHECK(refusal(7, model, text) == "accepted");
    CHECK(refusal(8, model, text) == checkpoint.path() +
                                         ": was made with seed 7, here it is 8; use `seed` "
                                         "7" +
                                         end);
    Model wider = model;
    wider.width = 8;
    CHECK(refusal(7, wider, text) ==
          checkpoint.path() +
              ": was made with another model: width 4, here 8; use the same `model`" + end);
    CHECK(refusal(7, model, other) == checkpoint.path() +
                                          ": was made with another text: its SHA-256 is " + text +
                                          ", here it is " + other + "; use the same `data`" + end);
  }

  TEST_CASE("checkpoint: blocks that it does not have or of another size are refused") {
    Trained t;
    const Checkpoint checkpoint = OpenNewest(t.folder);
    t.cut.Set(9);
    std::vector<StateBlock> blocks = t.cut.All();
    blocks[3].name = "layer 99 router";
    CHECK(Failure([&] { checkpoint.Load(blocks); }) ==
          checkpoint.path() + ": has no block \"layer 99 router\"; it is of another model");
    blocks = t.cut.All();
    StateBlock& block = blocks.back();
    block = {block.name, block.parameters.first(5), block.m.first(5), block.v.first(5)};
    CHECK(Failure([&] { checkpoint.Load(blocks); }) ==
          checkpoint.path() +
              ": block \"layer 7 expert 3 down\" has 12 values, here 5; it is of "
              "another model");
    CHECK(t.cut.Wrong(9) == "");
  }

  TEST_CASE("checkpoint: blocks must be all of the model and each once") {
    const CheckpointFolder folder;
    PrepareCheckpoints(folder.path());
    CutModel cut(CheckpointModel(), 1, 1);
    const auto commit = [&](const std::vector<std::vector<StateBlock>>& shards) {
      std::vector<std::string> notes;
      for (const auto& blocks : shards) {
        notes.push_back(WriteShardOf(folder.path(), 6, static_cast<int>(notes.size()), blocks));
      }
      return Failure([&] { CommitCheckpoint(folder.path(), cut.Head(6), notes, 1); });
    };
    const std::vector<StateBlock> all = cut.All();
    const std::string begin = "the checkpoint of step 6 was not made: ";
    const std::string last = begin + "block \"layer 7 expert 3 down\" has ";
    CHECK(commit({{all.begin(), all.end() - 1}}) ==
          last + "0 values in the shards, in the model 12");
    CHECK(folder.Names() == "");
    CHECK(commit({all, {all.back()}}).ends_with("is there already; every block is written once"));
    std::vector<StateBlock> changed = all;
    changed.push_back(changed.back());
    changed.back().name = "x";
    CHECK(commit({changed}) == begin + "block \"x\" is not of the model");
    changed = all;
    StateBlock& cut_off = changed.back();
    cut_off = {cut_off.name, cut_off.parameters.first(5), cut_off.m.first(5), cut_off.v.first(5)};
    CHECK(commit({changed}) == last + "5 values in the shards, in the model 12");
    CHECK(folder.Names() == "");
    CHECK(commit({all, {}}) == "accepted");
    CHECK(folder.Names() == "step-00000006");
  }

  TEST_CASE("checkpoint: shards that this process does not see are said to be so") {
    const CheckpointFolder folder;
    PrepareCheckpoints(folder.path());
    CutModel cut(CheckpointModel(), 2, 1);
    const auto commit = [&](const auto& harm) {
      std::vector<std::string> notes;
      for (const int shard : {0, 1}) {
        notes.push_back(WriteShardOf(folder.path(), 6, shard, cut.All(static_cast<size_t>(shard))));
      }
      harm(AsideOf(folder.path(), 6) + "/" + ShardName(1), notes[1]);
      return Failure([&] { CommitCheckpoint(folder.path(), cut.Head(6), notes, 1); });
    };
    const std::string begin = "the checkpoint of step 6 was not made: ";
    const std::string shard = AsideOf(folder.path(), 6) + "/shard-0001";
    CHECK(commit([](const std::string& file, std::string&) { fs::remove(file); }) ==
          begin + shard +
              ": is not there, though its process has written it; give `checkpoint` a folder that "
              "all machines share");
    const std::string cut_off =
        commit([](const std::string& file, std::string&) { fs::resize_file(file, 100); });
    CHECK(cut_off.rfind(begin + shard + ": has 100 bytes, its process has written ", 0) == 0);
    const std::string note = begin + AsideOf(folder.path(), 6) + ": shard-0001: ";
    CHECK(commit([](const std::string&, std::string& n) { n = "x\n"; }) ==
          note + "must begin with `contraflow shard-0001 of step-00000006`");
    CHECK(commit([](const std::string&, std::string& n) { n.pop_back(); }) ==
          note + "the last line is cut off");
    const std::string cut_note = commit(
        [](const std::string&, std::string& n) { n.erase(n.rfind('\n', n.size() - 2) + 1); });
    CHECK(cut_note.starts_with(begin + shard + ": has "));
    CHECK(commit([](const std::string&, std::string& n) {
            n += "x\n";
          }).starts_with(begin + shard + ": has "));
    CHECK(folder.Names() == "");
  }

  TEST_CASE("checkpoint: the digest of weights hangs on names and values alone") {
    const Digest a = Sha256("a"), b = Sha256("b");
    const auto digest = [](const std::map<std::string, Digest>& blocks) {
      return Hex(WeightsDigest(blocks));
    };
    CHECK(digest({{"x", a}, {"y", b}}) == digest({{"y", b}, {"x", a}}));
    CHECK(digest({{"x", a}, {"y", b}}) != digest({{"x", b}, {"y", a}}));
    CHECK(digest({{"x", a}, {"y", b}}) != digest({{"x", a}, {"z", b}}));
    CHECK(digest({{"x", a}}) != digest({{"x", a}, {"y", b}}));
    std::string bytes = "x\n" + std::string(a.begin(), a.end());
    CHECK(digest({{"x", a}}) == Hex(Sha256(bytes)));
  }
}

}  // namespace
}  // namespace contraflow::checkpoint_test
