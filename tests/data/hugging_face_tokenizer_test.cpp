// tokenizer.json as GPT-2, Llama 3, Qwen2.5 and SmolLM2 have it: the ids are those of Hugging Face's `tokenizers` (tests/golden/
// make_tokenizers.py), cutting changes nothing, and what is not supported is named.
#include "data/tokenizer/hugging_face_tokenizer.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "data/document_source.h"
#include "data/encode_pool.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/nfc.h"
#include "data/tokenizer/tokenizer_folder.h"
#include "test_support.h"

namespace baleen::test {
namespace {

std::filesystem::path golden_folder(const std::string& name) {
  return testing::golden_file("tokenizers/" + name);
}

std::uint64_t fnv1a(const std::vector<std::int32_t>& ids) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::int32_t id : ids) hash = (hash ^ static_cast<std::uint32_t>(id)) * 0x100000001b3u;
  return hash;
}

class HuggingFace : public ::testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<const Tokenizer> tokenizer = load_folder_tokenizer(golden_folder(GetParam()));
  std::string text = read_file(golden_folder("mixed.txt"));
  nlohmann::json golden = parse_json(read_file(golden_folder("golden.json")), "golden.json")[GetParam()];
  std::vector<std::int32_t> ids_of(std::string_view part) const {
    std::vector<std::int32_t> ids;
    tokenizer->encode(part, ids);
    return ids;
  }
};

TEST_P(HuggingFace, IdsAreThoseOfTokenizers) {
  const std::vector<std::int32_t> ids = ids_of(text);
  const auto first = golden["first"].get<std::vector<std::int32_t>>();
  EXPECT_EQ(std::vector<std::int32_t>(ids.begin(), ids.begin() + 40), first);
  EXPECT_EQ(ids.size(), golden["tokens"].get<std::size_t>());
  EXPECT_EQ(fnv1a(ids), std::stoull(golden["fnv1a"].get<std::string>(), nullptr, 16));
  EXPECT_EQ(tokenizer->vocabulary_size(), golden["vocabulary"].get<int>());
  std::vector<std::int32_t> prompt = tokenizer->beginning();
  tokenizer->encode("Hello world", prompt);
  EXPECT_EQ(prompt, golden["prompt"].get<std::vector<std::int32_t>>());
}

TEST_P(HuggingFace, SerialisesWithItsFiles) {
  const auto again = tokenizer_from_json(tokenizer->to_json(), "test");
  std::vector<std::int32_t> ids;
  again->encode(text, ids);
  EXPECT_EQ(ids, ids_of(text));
  EXPECT_EQ(again->files(), folder_tokenizer_files(golden_folder(GetParam())));
  EXPECT_EQ(again->end_of_document(), tokenizer->end_of_document());
  const std::string plain = "In the beginning: \xd0\xb8 \xe4\xb8\xad \xf0\x9f\x98\x80\n\n  x\xff y";  // and a byte that is no character
  EXPECT_EQ(tokenizer->decode(ids_of(plain)), plain);
}

// Every cut that safe_cut names leaves the ids as they are.
TEST_P(HuggingFace, CutsChangeNothing) {
  const std::vector<std::int32_t> whole = ids_of(text);
  std::vector<std::int32_t> ids;
  std::string_view rest = text;
  int cuts = 0;
  while (rest.size() > 300) {
    const std::size_t cut = tokenizer->safe_cut(rest.substr(0, 60 + static_cast<std::size_t>(cuts) % 200));
    ASSERT_LT(cut, rest.size());
    if (cut == 0) {  // no cut that early: more text
      const std::size_t later = tokenizer->safe_cut(rest.substr(0, 300));
      ASSERT_GT(later, 0u);
      tokenizer->encode(rest.substr(0, later), ids);
      rest.remove_prefix(later);
    } else {
      tokenizer->encode(rest.substr(0, cut), ids);
      rest.remove_prefix(cut);
    }
    ++cuts;
  }
  tokenizer->encode(rest, ids);
  EXPECT_GT(cuts, 50);
  EXPECT_EQ(ids, whole);
}

TEST_P(HuggingFace, DocumentsBeginAndEnd) {
  const TemporaryFolder folder;
  DocumentSource source({folder.write("a.txt", std::string(500, 'a') + " b" + std::string(500, 'c')), folder.write("b.txt", "b")},
                        *tokenizer, 400);
  std::vector<std::int32_t> ids, expected;
  while (const auto chunk = source.next()) {
    const EncodedChunk encoded = encode_chunk(*chunk, *tokenizer, "text");
    ids.insert(ids.end(), encoded.ids.begin(), encoded.ids.end());
  }
  for (const std::string& document : {std::string(500, 'a') + " b" + std::string(500, 'c'), std::string("b")}) {
    const auto beginning = tokenizer->beginning();
    expected.insert(expected.end(), beginning.begin(), beginning.end());
    tokenizer->encode(document, expected);
    expected.push_back(tokenizer->end_of_document());
  }
  EXPECT_EQ(ids, expected);
  EXPECT_EQ(tokenizer->decode(ids), std::string(500, 'a') + " b" + std::string(500, 'c') + "b");
}

INSTANTIATE_TEST_SUITE_P(Cases, HuggingFace, ::testing::Values("gpt2", "llama3", "qwen2", "smollm2"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST(HuggingFaceJson, NamesWhatIsNotSupported) {
  const std::string text = read_file(golden_folder("qwen2/tokenizer.json"));
  const auto refused = [&](const char* pointer, const nlohmann::json& value, const char* problem) {
    auto changed = parse_json(text, "test");
    changed[nlohmann::json::json_pointer(pointer)] = value;
    EXPECT_ERROR((void)HuggingFaceTokenizer({{"tokenizer.json", dump_json(changed)}}, "t.json"), ExitCode::bad_data, "t.json", problem);
  };
  refused("/normalizer", {{"type", "Lowercase"}}, "Lowercase");
  refused("/pre_tokenizer", {{"type", "Metaspace"}}, "Metaspace");
  refused("/pre_tokenizer/pretokenizers/0/behavior", "MergedWithNext", "MergedWithNext");
  refused("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a", "parenthesis");
  refused("/model/type", "Unigram", "Unigram");
  refused("/model/byte_fallback", true, "byte_fallback");
  refused("/model/merges/0", {"zzz", "zzz"}, "zzz");
  refused("/model/merges/0", "ab", "ab");
  refused("/model/vocab/a", 1 << 30, "an id");
  refused("/added_tokens/0/single_word", true, "single_word");
  refused("/added_tokens/0/content", "", "without text");
  refused("/pre_tokenizer/pretokenizers/0", {{"type", "ByteLevel"}, {"add_prefix_space", false}}, "ByteLevel behind ByteLevel");
  refused("/pre_tokenizer",
          {{"type", "Sequence"},
           {"pretokenizers", {{{"type", "ByteLevel"}, {"add_prefix_space", false}}, {{"type", "Digits"}, {"individual_digits", true}}}}},
          "Digits behind ByteLevel");
  refused("/post_processor", {{"type", "RobertaProcessing"}}, "the post-processor RobertaProcessing");
  refused("/post_processor", {{"type", "Sequence"}, {"processors", {{{"type", "BertProcessing"}}}}}, "the post-processor BertProcessing");
  refused("/added_tokens/0/id", 5, "which the vocabulary gives to");
  refused("/added_tokens/0/id", 701, "has the id 701 of the added token \"<|endoftext|>\"");
  refused("/added_tokens/0/content", "a", "and 64 in the vocabulary");
  refused("/added_tokens/0/content", "<|im_start|>", "there twice");
  auto without = parse_json(text, "test");
  without["added_tokens"] = nlohmann::json::array();
  EXPECT_ERROR((void)HuggingFaceTokenizer({{"tokenizer.json", dump_json(without)}}, "t.json"), ExitCode::bad_data,
               "no token ends a document", "tokenizer_config.json");
}

// The ids are those of tokenizers 0.23.3 for the same file.
std::vector<std::int32_t> ids_of_changed(const nlohmann::json& patch, std::string_view text) {
  const auto changed = parse_json(read_file(golden_folder("qwen2/tokenizer.json")), "test").patch(patch);
  std::vector<std::int32_t> ids;
  HuggingFaceTokenizer({{"tokenizer.json", dump_json(changed)}}, "t.json").encode(text, ids);
  return ids;
}

TEST(HuggingFaceJson, RemovedThrowsTextAway) {
  const auto removed = [](bool invert) {
    const nlohmann::json split{{"type", "Split"}, {"pattern", {{"Regex", "\\w+"}}}, {"behavior", "Removed"}, {"invert", invert}};
    return ids_of_changed({{{"op", "replace"}, {"path", "/pre_tokenizer/pretokenizers/0"}, {"value", split}}}, "ab, cd! the  x");
  };
  EXPECT_EQ(removed(true), (std::vector<std::int32_t>{64, 65, 66, 67, 425, 87}));
  EXPECT_EQ(removed(false), (std::vector<std::int32_t>{11, 220, 0, 220, 293}));
}

TEST(HuggingFaceJson, AddedTokensAreNormalizedAsTheTextIs) {
  for (const char* content : {"\u212b", "\u212b b"}) {
    const nlohmann::json token{{"id", 704}, {"content", content}, {"normalized", true}};
    const nlohmann::json patch{{{"op", "add"}, {"path", "/added_tokens/-"}, {"value", token}}};
    const std::string rest = std::string(content).substr(3);
    for (const char* spelling : {"\u212b", "\u00c5", "A\u030a"})
      EXPECT_EQ(ids_of_changed(patch, "x" + (spelling + rest) + "y"), (std::vector<std::int32_t>{87, 704, 88})) << content;
  }
  auto changed = parse_json(read_file(golden_folder("qwen2/tokenizer.json")), "test");
  changed["added_tokens"].push_back({{"id", 704}, {"content", "\u212b b"}, {"normalized", true}});
  const HuggingFaceTokenizer tokenizer({{"tokenizer.json", dump_json(changed)}}, "t.json");
  EXPECT_EQ(tokenizer.safe_cut("one tA\u030a b"), 3u);  // not within the token, however it is spelled
  EXPECT_EQ(tokenizer.safe_cut("one tA\u030a c"), 3u);
  EXPECT_EQ(tokenizer.safe_cut("one tA b"), 6u);
}

TEST(HuggingFaceJson, AnUnknownTokenNeedsEveryByte) {
  auto changed = parse_json(read_file(golden_folder("qwen2/tokenizer.json")), "test");
  changed["model"]["unk_token"] = "<|endoftext|>";
  EXPECT_NO_THROW((void)HuggingFaceTokenizer({{"tokenizer.json", dump_json(changed)}}, "t.json"));  // never used
  changed["model"]["vocab"].erase("\u0100");
  EXPECT_ERROR((void)HuggingFaceTokenizer({{"tokenizer.json", dump_json(changed)}}, "t.json"), ExitCode::bad_data, "t.json",
               "the unk_token <|endoftext|>", "\u0100");
}

TEST(HuggingFaceJson, TokensThatOtherFilesAddAreNamed) {
  const std::string main = read_file(golden_folder("qwen2/tokenizer.json"));
  const auto with = [&](const char* file, const std::string& content) {
    return HuggingFaceTokenizer({{"tokenizer.json", main}, {file, content}}, "t.json").vocabulary_size();
  };
  EXPECT_ERROR((void)with("added_tokens.json", R"({"<|im_end|>":702,"<|user|>":704})"), ExitCode::bad_data, "t.json",
               "\"<|user|>\" (704, added_tokens.json)", "save_pretrained");
  EXPECT_ERROR((void)with("added_tokens.json", R"({"<|im_end|>":700})"), ExitCode::bad_data, "\"<|im_end|>\" (700");
  EXPECT_ERROR((void)with("added_tokens.json", R"({"<|im_end|>":"x"})"), ExitCode::bad_data, "malformed added_tokens.json");
  EXPECT_ERROR((void)with("tokenizer_config.json", R"({"added_tokens_decoder":{"704":{"content":"<|user|>"}}})"), ExitCode::bad_data,
               "t.json", "\"<|user|>\" (704, tokenizer_config.json)");
  EXPECT_ERROR((void)with("tokenizer_config.json", R"({"added_tokens_decoder":{"7x":{"content":"<|user|>"}}})"), ExitCode::bad_data,
               "the id 7x");
  EXPECT_EQ(with("tokenizer_config.json", R"({"added_tokens_decoder":{"702":{"content":"<|im_end|>"},"64":{"content":"a"}}})"), 704);
}

TEST(HuggingFaceJson, AFolderWithoutTokenizerJsonSaysSo) {
  const TemporaryFolder folder;
  folder.write("vocab.json", "{}");
  EXPECT_EQ(load_folder_tokenizer(folder.path()), nullptr);
  folder.write("merges.txt", "");
  EXPECT_ERROR((void)load_folder_tokenizer(folder.path()), ExitCode::bad_data, folder.path().string(), "tokenizer.json is missing",
               "AutoTokenizer.from_pretrained(...).save_pretrained(...)");
}

TEST(Nfc, ComposesAndOrders) {
  const NfcNormalizer nfc;
  std::string memory;
  const auto normalized = [&](std::string_view text) { return std::string(nfc.normalize(text, memory)); };
  EXPECT_EQ(normalized("plain text, \u0439 \u4e2d"), "plain text, \u0439 \u4e2d");
  EXPECT_EQ(normalized("e\u0301e"), "\u00e9e");
  EXPECT_EQ(normalized("\u0438\u0306x\u0438"), "\u0439x\u0438");
  EXPECT_EQ(normalized("a\u0301\u0327"), "\u00e1\u0327");  // marks sorted by class, then composed
  EXPECT_EQ(normalized("\u1100\u1161\u11a8"), "\uac01");   // Hangul by rule
  EXPECT_EQ(normalized("\uac00\u11a8"), "\uac01");
  EXPECT_EQ(normalized("\u2126\u212b\uf900"), "\u03a9\u00c5\u8c48");  // singletons
  EXPECT_EQ(normalized("\u0958"), "\u0915\u093c");                    // excluded from composition
  EXPECT_EQ(normalized("\u09c7\u09be"), "\u09cb");                    // a second half without a combining class
  EXPECT_EQ(normalized("a\ua953\u0323"), "\u1ea1\ua953");             // marks between the ideographs and the Hangul syllables
  EXPECT_EQ(normalized("e\xff\xcc\x81"), "e\xff\xcc\x81");            // nothing joins across a byte that is no character
}

TEST(AddedTokens, TheLeftmostAndLongestCountAndTakeWhiteSpaceAlong) {
  const AddedTokens tokens({{5, "<a>", true, false, false, false},
                            {6, "<a>b", true, false, false, false},
                            {7, "[M]", true, false, true, false},
                            {8, "[R]", true, false, false, true}});
  const auto split = [&](std::string_view text) {
    std::vector<AddedTokens::Part> parts;
    tokens.split(text, parts);
    std::string shown;
    for (const auto& part : parts)
      shown += "(" + std::string(text.substr(part.begin, part.end - part.begin)) + ":" + std::to_string(part.id) + ")";
    return shown;
  };
  EXPECT_EQ(split("x<a>y<a>b<a"), "(x:-1)(<a>:5)(y:-1)(<a>b:6)(<a:-1)");
  EXPECT_EQ(split("x \u00a0[M] y"), "(x:-1)( \u00a0[M]:7)( y:-1)");
  EXPECT_EQ(split("x [R] \u3000y"), "(x :-1)([R] \u3000:8)(y:-1)");
  EXPECT_TRUE(tokens.may_divide("x[R] y", 4));
  EXPECT_FALSE(tokens.may_divide("x[M] y", 4));
}

TEST(ByteAlphabet, IsABijection) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(decode_byte_characters(encode_byte_characters(all)), all);
  EXPECT_EQ(encode_byte_characters(" \n"), "\u0120\u010a");
  EXPECT_EQ(decode_byte_characters("\u4e2d"), std::nullopt);
}

}  // namespace
}  // namespace baleen::test
