// A SentencePiece model as Llama 2 has it gives the ids of SentencePiece's own Python package (tests/golden/make_tokenizers.py).
#include "data/tokenizer/sentence_piece_tokenizer.h"

#include <sentencepiece_processor.h>

#include <nlohmann/json.hpp>
#include <random>

#include "base/json.h"
#include "data/tokenizer/base64.h"
#include "data/tokenizer/streaming_decoder.h"
#include "data/tokenizer/tokenizer_folder.h"
#include "test_support.h"

namespace baleen {
namespace {

using test::TemporaryFolder;

std::filesystem::path golden_path(const std::string& name) {
  return testing::golden_file("tokenizers/" + name);
}

class SentencePiece : public ::testing::Test {
 protected:
  std::shared_ptr<const Tokenizer> tokenizer = load_folder_tokenizer(golden_path("sentencepiece"));
  nlohmann::json golden = parse_json(read_file(golden_path("golden.json")), "golden.json")["sentencepiece"];
  std::vector<std::int32_t> ids_of(std::string_view text) const {
    std::vector<std::int32_t> ids;
    tokenizer->encode(text, ids);
    return ids;
  }
};

TEST_F(SentencePiece, IdsAreThoseOfItsLibrary) {
  const std::vector<std::int32_t> ids = ids_of(read_file(golden_path("mixed.txt")));
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::int32_t id : ids) hash = (hash ^ static_cast<std::uint32_t>(id)) * 0x100000001b3u;
  EXPECT_EQ(ids.size(), golden["tokens"].get<std::size_t>());
  EXPECT_EQ(hash, std::stoull(golden["fnv1a"].get<std::string>(), nullptr, 16));
  EXPECT_EQ(tokenizer->vocabulary_size(), golden["vocabulary"].get<int>());
  EXPECT_EQ(tokenizer->end_of_document(), golden["end"].get<int>());
  std::vector<std::int32_t> prompt = tokenizer->beginning();
  tokenizer->encode("Hello world", prompt);
  EXPECT_EQ(prompt, golden["prompt"].get<std::vector<std::int32_t>>());
}

// What is encoded word by word inside has the ids of the library on the whole text, whatever stands between the words.
TEST_F(SentencePiece, SpacesMakeNoDifference) {
  sentencepiece::SentencePieceProcessor library;
  ASSERT_TRUE(library.LoadFromSerializedProto(read_file(golden_path("sentencepiece/tokenizer.model"))).ok());
  const std::vector<std::string> parts = {" ", "  ", "   ", "\u2581", "\n", "a", "the", "God", "12", "\u4e2d", "\xff", "\xe2\x96", "\t "};
  std::mt19937 dice(5);
  for (int turn = 0; turn < 2000; ++turn) {
    std::string text;
    for (unsigned n = dice() % 12; n > 0; --n) text += parts[dice() % parts.size()];
    std::vector<int> expected;
    ASSERT_TRUE(library.Encode(text, &expected).ok());
    ASSERT_EQ(ids_of(text), std::vector<std::int32_t>(expected.begin(), expected.end())) << ::testing::PrintToString(text);
  }
}

TEST_F(SentencePiece, DecodesWithoutTheSpaceInFront) {
  const std::string text = "Hello world, 42 \u4e2d";
  EXPECT_EQ(golden["text"], text);
  EXPECT_EQ(tokenizer->decode(ids_of(text)), text);
  std::vector<std::int32_t> whole = tokenizer->beginning();
  tokenizer->encode(text, whole);
  EXPECT_EQ(tokenizer->decode(whole), text);
  // Piece by piece, where a character is several byte tokens: whole characters come out.
  StreamingDecoder decoder(*tokenizer, tokenizer->end_of_document());
  std::string streamed;
  for (const std::int32_t id : ids_of(text)) {
    const std::string part = decoder.push(id);
    EXPECT_TRUE(part.empty() || (static_cast<unsigned char>(part[0]) & 0xc0u) != 0x80u) << streamed;
    streamed += part;
  }
  EXPECT_EQ(streamed + decoder.finish(), text);
}

TEST_F(SentencePiece, SerialisesAndIsCarriedOver) {
  const auto again = tokenizer_from_json(tokenizer->to_json(), "test");
  std::vector<std::int32_t> ids;
  again->encode("again, the same", ids);
  EXPECT_EQ(ids, ids_of("again, the same"));
  EXPECT_EQ(tokenizer_files(*again), folder_tokenizer_files(golden_path("sentencepiece")));
}

// transformers gives them ids of their own, behind the model's.
TEST_F(SentencePiece, TokensThatOtherFilesAddAreNamed) {
  const std::int32_t pieces = tokenizer->vocabulary_size();
  const auto refused = [&](const char* file, const std::string& content, const std::string& named) {
    const TemporaryFolder folder;
    folder.write("tokenizer.model", read_file(golden_path("sentencepiece/tokenizer.model")));
    folder.write(file, content);
    EXPECT_ERROR((void)load_folder_tokenizer(folder.path()), ExitCode::bad_data, folder.path().string(), named, "--tokenizer");
  };
  const auto numbered = [](std::string text, std::int32_t id) { return text.replace(text.find('#'), 1, std::to_string(id)); };
  const std::string named = "\"<|user|>\" (" + std::to_string(pieces);
  refused("added_tokens.json", numbered(R"({"<s>":1,"<|user|>":#})", pieces), named);
  refused("tokenizer_config.json", numbered(R"({"added_tokens_decoder":{"1":{"content":"<s>"},"#":{"content":"<|user|>"}}})", pieces),
          named);
  const std::string json = R"({"pre_tokenizer":null,"added_tokens":[{"id":1,"content":"<s>"},{"id":#,"content":"<|user|>"}]})";
  refused("tokenizer.json", numbered(json, pieces), named);
  const TemporaryFolder folder;
  folder.write("tokenizer.model", read_file(golden_path("sentencepiece/tokenizer.model")));
  folder.write("tokenizer.json", numbered(json, pieces - 1));
  folder.write("added_tokens.json", R"({"<s>":1})");
  EXPECT_EQ(load_folder_tokenizer(folder.path())->vocabulary_size(), pieces);
}

TEST_F(SentencePiece, DamageIsNamed) {
  const TemporaryFolder folder;
  const std::string model = read_file(golden_path("sentencepiece/tokenizer.model"));
  EXPECT_ERROR((void)load_tokenizer(folder.write("t.model", model.substr(0, 1000))), ExitCode::bad_data, "t.model", "SentencePiece");
  // Found by tests/fuzz: the library throws at an empty piece, and a byte piece may have any text.
  const std::string empty_piece =
      decode_base64("Cg4KBTx1bms+FQAAxwAYAgo4CjEAPBVzAAAAPhgDCg0KBDwvcz4VAAAAABj1Cg8KBjwweDQxPhUAAAAAGAYKlJbigWR0ZW5p4nk=").value();
  EXPECT_ERROR((void)SentencePieceTokenizer(empty_piece, "t.model"), ExitCode::bad_data, "t.model", "SentencePiece");
  std::string bytes = model;
  for (std::size_t at = bytes.find("<0x41>"); at != std::string::npos; at = bytes.find("<0x41>")) bytes[at + 2] = 'y';
  if (bytes != model) EXPECT_ERROR((void)SentencePieceTokenizer(bytes, "t.model"), ExitCode::bad_data, "t.model", "SentencePiece");
  EXPECT_ERROR((void)tokenizer_from_json(R"({"kind":"sentencepiece","file":"?"})", "a sidecar"), ExitCode::bad_data, "a sidecar", "base64");
}

TEST(StreamingDecoder, KeepsWhatIsNoWholeCharacterAndGivesBackAnyBytes) {
  const auto bytes = load_tokenizer("bytes");
  const auto stream = [&](std::string_view text) {
    StreamingDecoder decoder(*bytes, 256);
    std::string shown;
    for (const char byte : text) shown += decoder.push(static_cast<unsigned char>(byte)) + "|";
    return shown + decoder.finish();
  };
  EXPECT_EQ(stream("a\u00e9"), "a||\u00e9|");
  EXPECT_EQ(stream("\U0001f600"), "|||\U0001f600|");
  EXPECT_EQ(stream("\xff\x80z"), "\xff|\x80|z|");
  EXPECT_EQ(stream("\xe4\xb8"), "||\xe4\xb8");
}

}  // namespace
}  // namespace baleen
