#include "launch/handshake.h"

#include <sodium.h>

#include <optional>

#include "base/error.h"

namespace baleen {
namespace {

constexpr std::uint32_t magic = 0x314c4142;  // "BAL1", little-endian
constexpr std::uint16_t kind_hello = 1, kind_challenge = 2, kind_proof = 3, kind_verdict = 4, kind_payload = 5, kind_everybody = 6;
constexpr std::size_t header_bytes = 10;
constexpr std::size_t mac_bytes = crypto_auth_BYTES;
constexpr std::size_t largest_gathering = std::size_t{1} << 30;
using Mac = std::array<unsigned char, mac_bytes>;

template <class T>
void append(std::string& to, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T>
T take_front(std::string_view& from) {
  T value;
  from.copy(reinterpret_cast<char*>(&value), sizeof value);
  from.remove_prefix(sizeof value);
  return value;
}

std::string framed(std::uint16_t kind, const std::string& body) {
  std::string out;
  append(out, magic);
  append(out, kind);
  append(out, static_cast<std::uint32_t>(body.size()));
  return out + body;
}

std::string bytes_of(const RankClaims& claims) {
  std::string out;
  append(out, claims.rank);
  append(out, claims.world);
  append(out, claims.job);
  append(out, claims.build);
  return out;
}
constexpr std::size_t claims_bytes = 2 * sizeof(std::int32_t) + 64;

// What each side signs differs in its first word, so that neither's proof can be sent back as the other's.
Mac sign(const JobKey& key, std::string_view who, const Nonce& client, const Nonce& server, const RankClaims& claims,
         std::string_view rest) {
  std::string text;
  append(text, static_cast<std::uint64_t>(who.size()));
  text += who;
  append(text, client);
  append(text, server);
  text += bytes_of(claims);
  text += rest;
  Mac mac{};
  crypto_auth(mac.data(), reinterpret_cast<const unsigned char*>(text.data()), text.size(), key.data());
  return mac;
}

bool same(const Mac& a, const Mac& b) {
  return sodium_memcmp(a.data(), b.data(), mac_bytes) == 0;
}

struct Frame {
  std::uint16_t kind = 0;
  std::string body;
};

// The next whole message of `buffer`. Sets `why` where the bytes are none, or longer than `limit`.
std::optional<Frame> next_frame(std::string& buffer, std::size_t limit, std::string& why) {
  // Garbage is recognised by its first bytes.
  const std::size_t known = std::min(buffer.size(), sizeof magic);
  if (std::memcmp(buffer.data(), &magic, known) != 0) {
    why = "does not speak this protocol";
    return std::nullopt;
  }
  if (buffer.size() < header_bytes) return std::nullopt;
  std::string_view rest = std::string_view(buffer).substr(sizeof magic);
  const auto kind = take_front<std::uint16_t>(rest);
  const auto length = take_front<std::uint32_t>(rest);
  if (length > limit) {
    why = "sends a message of " + std::to_string(length) + " bytes where at most " + std::to_string(limit) + " are allowed";
    return std::nullopt;
  }
  if (rest.size() < length) return std::nullopt;
  Frame out{kind, std::string(rest.substr(0, length))};
  buffer.erase(0, header_bytes + length);
  return out;
}

std::array<unsigned char, 32> hash_of(std::string_view text) {
  std::array<unsigned char, 32> out{};
  crypto_generichash(out.data(), out.size(), reinterpret_cast<const unsigned char*>(text.data()), text.size(), nullptr, 0);
  return out;
}

}  // namespace

Nonce fresh_nonce() {
  BALEEN_CHECK(sodium_init() >= 0, "libsodium cannot start");
  Nonce out{};
  randombytes_buf(out.data(), out.size());
  return out;
}

RankClaims make_claims(int rank, int world, std::string_view job, std::string_view build) {
  return {rank, world, hash_of(job), hash_of(build)};
}

std::string verdict_text(Verdict verdict) {
  switch (verdict) {
    case Verdict::welcome: return "welcome";
    case Verdict::other_job: return "it belongs to another job";
    case Verdict::other_build: return "it runs another version or build of baleen";
    case Verdict::other_world: return "it counts another number of ranks";
    case Verdict::no_such_rank: return "it claims a rank that this job does not have";
    case Verdict::rank_taken: return "another process has come as that rank";
  }
  return "an answer that this version does not know";
}

HandshakeState ServerHandshake::refuse(std::string why) {
  why_ = std::move(why);
  expects_ = Expects::nothing;
  buffer_.clear();
  return state_ = HandshakeState::refused;
}

HandshakeState ServerHandshake::take(std::span<const std::byte> bytes, std::string& replies) {
  const std::size_t limit = expects_ == Expects::hello   ? sizeof(Nonce)
                            : expects_ == Expects::proof ? claims_bytes + mac_bytes
                                                         : largest_payload + mac_bytes;
  while (state_ == HandshakeState::talking) {
    // No more is kept than the message that is due.
    const std::size_t room = header_bytes + limit - std::min(buffer_.size(), header_bytes + limit), taken = std::min(room, bytes.size());
    buffer_.append(reinterpret_cast<const char*>(bytes.data()), taken);
    bytes = bytes.subspan(taken);
    std::string why;
    const Expects before = expects_;
    const auto frame = next_frame(buffer_, limit, why);
    if (!why.empty()) return refuse(why);
    if (!frame) return state_;
    step(frame->kind, frame->body, replies);
    if (before != expects_ && !bytes.empty() && state_ == HandshakeState::talking) return take(bytes, replies);
  }
  return state_;
}

HandshakeState ServerHandshake::step(std::uint16_t kind, std::string_view body, std::string& replies) {
  switch (expects_) {
    case Expects::hello: {
      if (kind != kind_hello || body.size() != sizeof(Nonce)) return refuse("begins with something else than a greeting");
      peer_nonce_ = take_front<Nonce>(body);
      std::string out;
      append(out, nonce_);
      replies += framed(kind_challenge, out);
      expects_ = Expects::proof;
      return state_;
    }
    case Expects::proof: {
      if (kind != kind_proof || body.size() != claims_bytes + mac_bytes)
        return refuse("answers the challenge with something else than a proof");
      claims_.rank = take_front<std::int32_t>(body);
      claims_.world = take_front<std::int32_t>(body);
      claims_.job = take_front<std::array<unsigned char, 32>>(body);
      claims_.build = take_front<std::array<unsigned char, 32>>(body);
      if (!same(take_front<Mac>(body), sign(key_, "client", peer_nonce_, nonce_, claims_, "")))
        return refuse("does not know this job's secret");
      expects_ = Expects::nothing;
      return state_ = HandshakeState::proven;
    }
    case Expects::payload: {
      if (kind != kind_payload || body.size() < mac_bytes) return refuse("sends something else than its payload");
      const auto mac = take_front<Mac>(body);
      if (!same(mac, sign(key_, "payload", peer_nonce_, nonce_, claims_, body))) return refuse("sends a payload that is not signed");
      payload_ = std::string(body);
      expects_ = Expects::nothing;
      return state_ = HandshakeState::complete;
    }
    case Expects::nothing: break;
  }
  return refuse("talks out of turn");
}

Verdict ServerHandshake::decide(bool taken, std::string& replies) {
  BALEEN_CHECK(state_ == HandshakeState::proven, static_cast<int>(state_));
  Verdict verdict = Verdict::welcome;
  if (claims_.job != own_.job)
    verdict = Verdict::other_job;
  else if (claims_.build != own_.build)
    verdict = Verdict::other_build;
  else if (claims_.world != own_.world)
    verdict = Verdict::other_world;
  else if (claims_.rank < 0 || claims_.rank >= own_.world)
    verdict = Verdict::no_such_rank;
  else if (taken)
    verdict = Verdict::rank_taken;
  std::string word, out;
  append(word, static_cast<std::uint32_t>(verdict));
  append(out, sign(key_, "verdict", peer_nonce_, nonce_, claims_, word));
  replies += framed(kind_verdict, out + word);
  if (verdict == Verdict::welcome) {
    state_ = HandshakeState::talking;
    expects_ = Expects::payload;
  } else {
    refuse(verdict_text(verdict));
  }
  return verdict;
}

std::string ServerHandshake::everybody(const std::string& payloads) const {
  std::string out;
  append(out, sign(key_, "everybody", peer_nonce_, nonce_, claims_, payloads));
  return framed(kind_everybody, out + payloads);
}

std::string ClientHandshake::hello() const {
  std::string out;
  append(out, nonce_);
  return framed(kind_hello, out);
}

HandshakeState ClientHandshake::refuse(std::string why) {
  why_ = std::move(why);
  expects_ = Expects::nothing;
  return state_ = HandshakeState::refused;
}

HandshakeState ClientHandshake::take(std::span<const std::byte> bytes, std::string& replies) {
  buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  while (state_ == HandshakeState::talking || state_ == HandshakeState::proven) {
    const std::size_t limit = expects_ == Expects::everybody
                                  ? std::min(largest_gathering, static_cast<std::size_t>(claims_.world) * (largest_payload + 8) + mac_bytes)
                                  : sizeof(Nonce) + mac_bytes;
    std::string why;
    const auto frame = next_frame(buffer_, limit, why);
    if (!why.empty()) return refuse(why);
    if (!frame) return state_;
    step(frame->kind, frame->body, replies);
  }
  return state_;
}

HandshakeState ClientHandshake::step(std::uint16_t kind, std::string_view body, std::string& replies) {
  switch (expects_) {
    case Expects::challenge: {
      if (kind != kind_challenge || body.size() != sizeof(Nonce)) return refuse("answers a greeting with something else than a challenge");
      peer_nonce_ = take_front<Nonce>(body);
      std::string out = bytes_of(claims_);
      append(out, sign(key_, "client", nonce_, peer_nonce_, claims_, ""));
      replies += framed(kind_proof, out);
      expects_ = Expects::verdict;
      return state_;
    }
    case Expects::verdict: {
      if (kind != kind_verdict || body.size() != mac_bytes + sizeof(std::uint32_t))
        return refuse("answers a proof with something else than a verdict");
      const auto mac = take_front<Mac>(body);
      if (!same(mac, sign(key_, "verdict", nonce_, peer_nonce_, claims_, body))) return refuse("does not know this job's secret");
      verdict_ = static_cast<Verdict>(take_front<std::uint32_t>(body));
      if (verdict_ != Verdict::welcome) return refuse(verdict_text(verdict_));
      std::string out;
      append(out, sign(key_, "payload", nonce_, peer_nonce_, claims_, payload_));
      replies += framed(kind_payload, out + payload_);
      expects_ = Expects::everybody;
      return state_ = HandshakeState::proven;
    }
    case Expects::everybody: {
      if (kind != kind_everybody || body.size() < mac_bytes) return refuse("sends something else than everybody's payloads");
      const auto mac = take_front<Mac>(body);
      if (!same(mac, sign(key_, "everybody", nonce_, peer_nonce_, claims_, body))) return refuse("sends payloads that are not signed");
      payloads_ = std::string(body);
      expects_ = Expects::nothing;
      return state_ = HandshakeState::complete;
    }
    case Expects::nothing: break;
  }
  return refuse("talks out of turn");
}

}  // namespace baleen
