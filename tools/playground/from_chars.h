#pragma once

// libc++ before 20 reads no floating-point number with std::from_chars. The build includes this
// file before every source, so that the sources need not know.

#include <version>

#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 200000

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>

namespace std {

/// std::from_chars as C++17 has it, but for hexadecimal formats and "nan(...)".
inline from_chars_result from_chars(const char* first, const char* last, double& value,
                                    chars_format format = chars_format::general) {
  const char* at = first;
  const auto digits = [&] {
    const char* const begin = at;
    while (at != last && *at >= '0' && *at <= '9') ++at;
    return at - begin;
  };
  const auto word = [&](string_view small) {
    if (static_cast<size_t>(last - at) < small.size()) return false;
    for (size_t k = 0; k < small.size(); ++k) {
      if ((at[k] | 0x20) != small[k]) return false;
    }
    at += small.size();
    return true;
  };
  if (at != last && *at == '-') ++at;
  bool zero = false;
  if (!word("infinity") && !word("inf") && !word("nan")) {
    const char* const mantissa = at;
    auto count = digits();
    if (at != last && *at == '.') {
      ++at;
      count += digits();
      if (count == 0) --at;
    }
    if (count == 0) return {first, errc::invalid_argument};
    zero = string_view(mantissa, at).find_first_of("123456789") == string_view::npos;
    if (format != chars_format::fixed && at != last && (*at | 0x20) == 'e') {
      const char* const end = at++;
      if (at != last && (*at == '+' || *at == '-')) ++at;
      if (digits() == 0) at = end;
    }
  }
  const double read = strtod(string(first, at).c_str(), nullptr);
  const bool finite = (at[-1] >= '0' && at[-1] <= '9') || at[-1] == '.';
  if (finite && (isinf(read) || (read == 0 && !zero))) return {at, errc::result_out_of_range};
  value = read;
  return {at, errc()};
}

}  // namespace std

#endif
