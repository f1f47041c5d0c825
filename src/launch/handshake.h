// How a process proves over a connection that it belongs to a job, and the job that it is the job: bytes in, bytes out, no sockets, so that
// tests and the fuzz harness can feed it anything.
//
//   client                                          rank 0
//   hello   client's nonce                     ->
//                                              <-   challenge  server's nonce
//   proof   claims, HMAC(key, both nonces, claims) ->
//                                              <-   verdict    word, HMAC(key, both nonces, claims, word)
//   payload bytes, HMAC(…)                     ->
//                                              <-   everybody  all payloads, HMAC(…)
//
// Each side's nonce is new for each connection, so that nothing heard before can be said again. Every message is a header of 10 bytes
// (magic, kind, length) with a length that is checked before anything is kept: before the proof a peer can make this side hold less than
// 300 bytes. HMAC-SHA-512-256 of libsodium; RFC 2104. Nothing is encrypted.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "launch/job_secret.h"

namespace baleen {

using Nonce = std::array<unsigned char, 32>;
Nonce fresh_nonce();

// What a rank claims to be.
struct RankClaims {
  std::int32_t rank = 0, world = 0;
  std::array<unsigned char, 32> job{}, build{};  // hashes of their names
  bool operator==(const RankClaims&) const = default;
};
RankClaims make_claims(int rank, int world, std::string_view job, std::string_view build);

// The largest payload of a rank, bytes.
inline constexpr std::size_t largest_payload = 4096;

enum class Verdict : std::uint32_t { welcome = 1, other_job = 2, other_build = 3, other_world = 4, no_such_rank = 5, rank_taken = 6 };
std::string verdict_text(Verdict verdict);

enum class HandshakeState { talking, proven, complete, refused };

// Rank 0's end of one connection.
class ServerHandshake {
 public:
  ServerHandshake(const JobKey& key, const RankClaims& own, const Nonce& nonce) : key_(key), own_(own), nonce_(nonce) {}

  // Takes what has come and adds to `replies` what is to be sent. Becomes `proven` once the proof holds: then the caller calls decide().
  HandshakeState take(std::span<const std::byte> bytes, std::string& replies);
  HandshakeState state() const { return state_; }
  // Of a proven peer: whether its rank may come in. A rank taken is refused here; everything else the claims say for themselves.
  Verdict decide(bool taken, std::string& replies);
  const RankClaims& claims() const { return claims_; }
  const std::string& payload() const { return payload_; }  // once complete
  const std::string& why() const { return why_; }          // once refused
  // The last message: everybody's payloads.
  std::string everybody(const std::string& payloads) const;

 private:
  HandshakeState refuse(std::string why);
  HandshakeState step(std::uint16_t kind, std::string_view body, std::string& replies);

  JobKey key_;
  RankClaims own_, claims_;
  Nonce nonce_, peer_nonce_{};
  HandshakeState state_ = HandshakeState::talking;
  enum class Expects : std::uint8_t { hello, proof, nothing, payload } expects_ = Expects::hello;
  std::string buffer_, payload_, why_;
};

// A rank's end.
class ClientHandshake {
 public:
  ClientHandshake(const JobKey& key, const RankClaims& claims, const Nonce& nonce, std::string payload)
      : key_(key), claims_(claims), nonce_(nonce), payload_(std::move(payload)) {}
  // What to say first.
  std::string hello() const;
  // `proven`: rank 0 has shown that it knows the secret and has let this rank in, or not (verdict()).
  HandshakeState take(std::span<const std::byte> bytes, std::string& replies);
  HandshakeState state() const { return state_; }
  Verdict verdict() const { return verdict_; }
  const std::string& payloads() const { return payloads_; }  // once complete
  const std::string& why() const { return why_; }

 private:
  HandshakeState refuse(std::string why);
  HandshakeState step(std::uint16_t kind, std::string_view body, std::string& replies);

  JobKey key_;
  RankClaims claims_;
  Nonce nonce_, peer_nonce_{};
  HandshakeState state_ = HandshakeState::talking;
  enum class Expects : std::uint8_t { challenge, verdict, everybody, nothing } expects_ = Expects::challenge;
  Verdict verdict_ = Verdict::welcome;
  std::string buffer_, payload_, payloads_, why_;
};

}  // namespace baleen
