#include "tools/exit.h"

#include <cstdio>
#include <new>

#include "compiler/error.h"

namespace contraflow {
namespace {

int Complain(std::string_view program, std::string_view text, int code) {
  const std::string line = std::string(program) + ": error: " + std::string(text) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
  return code;
}

}  // namespace

int Guard(std::string_view program, const std::function<int()>& body) {
  try {
    return body();
  } catch (const UsageError& error) {
    return Complain(program, error.what(), kExitUsage);
  } catch (const Error& error) {
    return Complain(program, error.what(), kExitInput);
  } catch (const std::bad_alloc&) {
    return Complain(program, "out of memory; use fewer ranks or micro-batches", kExitInput);
  } catch (const InternalError& error) {
    return Complain(program, error.what(), kExitBug);
  } catch (const std::exception& error) {
    return Complain(program,
                    std::string("internal error: ") + error.what() +
                        "; this is a bug in contraflow, please report it",
                    kExitBug);
  } catch (...) {
    return Complain(program,
                    "internal error: unknown exception; this is a bug in contraflow, please "
                    "report it",
                    kExitBug);
  }
}

}  // namespace contraflow
