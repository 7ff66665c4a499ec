#pragma once

#include <map>
#include <string>
#include <string_view>

#include "compiler/files/file.h"
#include "compiler/plan/error.h"

namespace contraflow {

// The names in a folder of checkpoints.
//
//     step-00000010            a complete checkpoint
//     .step-00000020.new       is being written, or being removed
//     .step-00000010.old       was complete; step-00000010 takes its place at this moment
//     .lock                    is locked by the job that writes here, and names its first process

/// `step-00000010`; more digits if needed.
std::string StepName(int step);
/// `shard-0003`; more digits if needed.
std::string ShardName(int shard);
inline constexpr std::string_view kManifestName = "manifest";

/// `.shard-0003.note`: what is in a shard that is complete, for who did not write it.
std::string NoteName(int shard);

/// The folder in which the checkpoint of a step is written.
std::string AsideOf(const std::string& directory, int step);

/// The folders of all complete checkpoints by step; none if the folder is not there. Throws Error
/// if it cannot be read.
std::map<int, std::string> CompleteSteps(const std::string& directory);

/// Gives the folder aside its name, in the place of the checkpoint that has it, if there is one: at
/// every moment one of the two is complete and found by CompleteSteps.
void Publish(const std::string& directory, int step);
/// Removes a checkpoint, which stops being one at once, whatever happens meanwhile.
void RemoveStep(const std::string& directory, int step);
/// Brings back what a killed Publish has left, and removes all else that is hidden.
void RemoveLeftovers(const std::string& directory);

/// Holds a folder for this process, by a lock of the system on a hidden file that ends with the
/// process. Throws Error, naming who has it, where another process does.
class FolderLock {
 public:
  explicit FolderLock(const std::string& directory);

 private:
  const Descriptor file_;
};

/// Remedy for an error number of the system, as the end of a message: "; remedy", or "".
std::string RemedyFor(int error);

/// Works on the files of checkpoints: what the system refuses is thrown with its remedy.
template <typename Work>
auto WithRemedy(const Work& work) {
  try {
    return work();
  } catch (const FileError& error) {
    throw Error(error.what() + RemedyFor(error.number));
  }
}

}  // namespace contraflow
