#include "runtime/transport/local_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <memory>
#include <optional>

namespace contraflow {
namespace {

/// An IPv4 address (4 bytes used) or an IPv6 one (16).
struct Numeric {
  size_t size = 0;
  std::array<unsigned char, 16> bytes{};
  size_t prefix = 0;  // bits

  bool SameAddress(const Numeric& other) const {
    return size == other.size && bytes == other.bytes;
  }
};

bool SameNetwork(const Numeric& a, const Numeric& b) {
  if (a.size != b.size || a.prefix != b.prefix) return false;
  for (size_t bit = 0; bit < a.prefix; ++bit) {
    const int mask = 0x80 >> (bit % 8);
    if ((a.bytes[bit / 8] & mask) != (b.bytes[bit / 8] & mask)) return false;
  }
  return true;
}

std::optional<Numeric> Parse(const std::string& text) {
  const size_t slash = text.find('/');
  if (slash == std::string::npos) return {};
  const std::string address = text.substr(0, slash);
  Numeric numeric;
  if (inet_pton(AF_INET, address.c_str(), numeric.bytes.data()) == 1) {
    numeric.size = 4;
  } else if (inet_pton(AF_INET6, address.c_str(), numeric.bytes.data()) == 1) {
    numeric.size = 16;
  } else {
    return {};
  }
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + slash + 1, end, numeric.prefix);
  if (error != std::errc() || rest != end || numeric.prefix > 8 * numeric.size) return {};
  return numeric;
}

size_t CountBits(const unsigned char* mask, size_t size) {
  size_t bits = 0;
  while (bits < 8 * size && (mask[bits / 8] & (0x80 >> (bits % 8))) != 0) ++bits;
  return bits;
}

/// "" if it is none that another machine could use.
std::string TextOf(const ifaddrs& interface) {
  const sockaddr* const address = interface.ifa_addr;
  const sockaddr* const mask = interface.ifa_netmask;
  if (address == nullptr || mask == nullptr) return "";
  char text[INET6_ADDRSTRLEN] = "";
  size_t prefix = 0;
  if (address->sa_family == AF_INET) {
    const in_addr& numeric = reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    if (ntohl(numeric.s_addr) >> 16 == 0xa9fe) return "";  // 169.254.0.0/16, link-local
    inet_ntop(AF_INET, &numeric, text, sizeof text);
    const in_addr& bits = reinterpret_cast<const sockaddr_in*>(mask)->sin_addr;
    prefix = CountBits(reinterpret_cast<const unsigned char*>(&bits), sizeof bits);
  } else if (address->sa_family == AF_INET6) {
    const in6_addr& numeric = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&numeric)) return "";
    inet_ntop(AF_INET6, &numeric, text, sizeof text);
    const in6_addr& bits = reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr;
    prefix = CountBits(bits.s6_addr, sizeof bits.s6_addr);
  } else {
    return "";
  }
  return text + ("/" + std::to_string(prefix));
}

}  // namespace

std::vector<std::string> LocalAddresses() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, freeifaddrs);
  std::vector<std::string> addresses;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if ((at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
    std::string text = TextOf(*at);
    if (!text.empty()) addresses.push_back(std::move(text));
  }
  std::stable_partition(addresses.begin(), addresses.end(), [](const std::string& address) {
    return address.find(':') == std::string::npos;
  });
  return addresses;
}

std::string ReachableAddress(const std::vector<std::string>& own,
                             const std::vector<std::vector<std::string>>& others) {
  std::string best;
  for (const std::string& text : own) {
    const std::optional<Numeric> mine = Parse(text);
    if (!mine) continue;
    // An address that two machines have is one that only they themselves can reach.
    const bool shared = std::all_of(others.begin(), others.end(), [&](const auto& machine) {
      bool has_network = false;
      for (const std::string& other : machine) {
        const std::optional<Numeric> theirs = Parse(other);
        if (!theirs) continue;
        if (theirs->SameAddress(*mine)) return false;
        has_network = has_network || SameNetwork(*mine, *theirs);
      }
      return has_network;
    });
    const std::string address = text.substr(0, text.find('/'));
    if (shared) return address;
    if (best.empty()) best = address;
  }
  return best;
}

}  // namespace contraflow
