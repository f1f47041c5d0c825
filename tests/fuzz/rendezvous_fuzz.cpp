// Feeds the rendezvous protocol conversations that were cut, mixed, repeated and damaged, and noise, in pieces of any length.
//
//   rendezvous_fuzz SECONDS [SEED]
//
// Build it with the preset asan, so that a read or write out of bounds ends it. Besides, no input that differs from what a rank with the
// secret would send may ever be let in, no peer may be answered at length before it has proved itself, and no side may keep more than it
// must. Prints how many conversations it has had. With clang's -fsanitize=fuzzer and BALEEN_LIBFUZZER the same body is libFuzzer's.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include "launch/handshake.h"

namespace baleen {
namespace {

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

[[noreturn]] void broken(const char* what) {
  std::fprintf(stderr, "rendezvous_fuzz: %s\n", what);
  std::abort();
}

struct Conversation {
  std::string hello, challenge, proof, verdict, payload, everybody;
};

// What two honest ends say, with these nonces.
struct Ends {
  JobKey key = derive_key("the secret of the fuzzer");
  Nonce server_nonce{}, client_nonce{};
  ServerHandshake server() const { return ServerHandshake(key, make_claims(0, 4, "job", "build"), server_nonce); }
  ClientHandshake client() const { return ClientHandshake(key, make_claims(2, 4, "job", "build"), client_nonce, "payload"); }

  Conversation talk() const {
    Conversation out;
    ServerHandshake host = server();
    ClientHandshake rank = client();
    out.hello = rank.hello();
    host.take(bytes(out.hello), out.challenge);
    rank.take(bytes(out.challenge), out.proof);
    host.take(bytes(out.proof), out.verdict);
    if (host.state() != HandshakeState::proven) broken("an honest proof is refused");
    host.decide(false, out.verdict);
    rank.take(bytes(out.verdict), out.payload);
    host.take(bytes(out.payload), out.everybody);
    if (host.state() != HandshakeState::complete) broken("an honest payload is refused");
    return out;
  }
};

// `input` begins with the lengths of the pieces it is fed in.
void feed(const Ends& ends, const Conversation& honest, std::string_view input) {
  const std::size_t stride = input.empty() ? 1 : 1 + static_cast<unsigned char>(input[0]) % 64;
  const std::string_view words = input.substr(std::min<std::size_t>(1, input.size()));
  ServerHandshake server = ends.server();
  ClientHandshake client = ends.client();
  std::string to_client, to_server;
  for (std::size_t at = 0; at < words.size(); at += stride) {
    server.take(bytes(words.substr(at, stride)), to_client);
    client.take(bytes(words.substr(at, stride)), to_server);
    if (server.state() == HandshakeState::proven) server.decide(false, to_client);
  }
  const bool said_hello = words.substr(0, honest.hello.size()) == honest.hello;
  const bool gave_proof = said_hello && words.substr(honest.hello.size(), honest.proof.size()) == honest.proof;
  if (to_client.size() > honest.challenge.size() && !gave_proof) broken("somebody without the secret got more than a challenge");
  if (server.state() == HandshakeState::complete && server.payload() != "payload") broken("a payload came in that nobody sent");
  const bool challenged = words.substr(0, honest.challenge.size()) == honest.challenge;
  if (to_server.size() > honest.proof.size() &&
      !(challenged && words.substr(honest.challenge.size(), honest.verdict.size()) == honest.verdict))
    broken("a rank gave its payload to somebody without the secret");
}

std::string mutate(const Conversation& honest, std::mt19937_64& random) {
  const std::string* parts[] = {&honest.hello, &honest.proof, &honest.payload, &honest.challenge, &honest.verdict, &honest.everybody};
  std::string out(1, static_cast<char>(random()));
  switch (random() % 4) {
    case 0:  // a rank's side, or rank 0's
      out += random() % 2 == 0 ? honest.hello + honest.proof + honest.payload : honest.challenge + honest.verdict;
      break;
    case 1:
      for (std::size_t count = random() % 6; count > 0; --count) out += *parts[random() % 6];
      break;
    case 2: out += honest.hello; break;
    default:
      for (std::size_t count = random() % 600; count > 0; --count) out += static_cast<char>(random());
  }
  for (std::size_t count = random() % 4; count > 0 && out.size() > 1; --count) {
    const std::size_t at = 1 + random() % (out.size() - 1);
    switch (random() % 5) {
      case 0: out[at] = static_cast<char>(random()); break;
      case 1: out[at] = static_cast<char>(out[at] ^ (1 << random() % 8)); break;
      case 2: out.erase(at, random() % 40); break;
      case 3: out.insert(at, out.substr(1, random() % 60)); break;
      default: out.resize(at); break;
    }
  }
  return out;
}

}  // namespace
}  // namespace baleen

#ifdef BALEEN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  static const baleen::Ends ends;
  static const baleen::Conversation honest = ends.talk();
  baleen::feed(ends, honest, {reinterpret_cast<const char*>(data), size});
  return 0;
}
#else
int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
  std::mt19937_64 random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  const baleen::Ends ends;
  const baleen::Conversation honest = ends.talk();
  const auto begin = std::chrono::steady_clock::now();
  std::size_t conversations = 0;
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds)
    for (int each = 0; each < 1000; ++each, ++conversations) baleen::feed(ends, honest, baleen::mutate(honest, random));
  std::printf("rendezvous_fuzz: %zu conversations in %.0f s, nothing broke\n", conversations, seconds);
  return 0;
}
#endif
