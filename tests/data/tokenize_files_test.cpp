#include "data/tokenize_files.h"

#include <signal.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/rng.h"
#include "data/document_source.h"
#include "data/tokenizer/rank_file.h"
#include "data/tokenizer/rank_tokenizer.h"
#include "data/validation_split.h"
#include "gzip.h"
#include "test_support.h"

namespace baleen {
namespace {

using test::gzip;
using test::TemporaryFolder;
using Ids = std::vector<std::int32_t>;

std::shared_ptr<const Tokenizer> small_tokenizer() {
  return std::make_shared<RankTokenizer>(parse_rank_file(test::small_rank_file(), "small"), "small");
}

Ids ids_in(const std::filesystem::path& path) {
  const TokenFile file(path);
  Ids ids(file.size());
  file.read(0, ids, std::int64_t{1} << 40);
  return ids;
}

// The ids of documents one after another, each encoded in one piece.
Ids encode_all(const Tokenizer& tokenizer, const std::vector<std::string>& documents) {
  Ids ids;
  for (const auto& document : documents) {
    tokenizer.encode(document, ids);
    ids.push_back(tokenizer.end_of_document());
  }
  return ids;
}

std::string json_line(const std::string& text) {
  return dump_json(nlohmann::json{{"id", 1}, {"text", text}}) + "\n";
}

// Words, punctuation, white space of every kind, other scripts and broken UTF-8.
std::string mixed_text(std::uint64_t seed, std::size_t words, bool valid) {
  const std::string parts[]{"the",  " and",    "in",   " ",      "  ",     "\n", "\n\n",
                            "\r\n", "\t",      "'s",   "don't",  " 42",    ".",  ",",
                            "мир",  " и",      "的。", "\u3000", "\u00a0", "😀", std::string(1, '\0'),
                            "\xff", "\xe2\x80"};
  const Philox random(seed);
  std::string text;
  for (std::size_t i = 0; i < words; ++i) text += parts[random(i)[0] % (std::size(parts) - (valid ? 2 : 0))];
  return text;
}

TEST(TokenizeFiles, EncodesAsInOnePieceWhateverThreadsAndChunks) {
  const TemporaryFolder folder;
  const std::string text = mixed_text(1, 20'000, false), other = mixed_text(2, 3'000, false);
  const std::vector<std::string> lines{mixed_text(3, 2'000, true), "short", mixed_text(4, 10, true)};
  const std::vector<std::filesystem::path> inputs{
      folder.write("a.txt", text), folder.write("b.txt.gz", gzip(other)),
      folder.write("c.jsonl", json_line(lines[0]) + "\n  \r\n" + json_line(lines[1]) + json_line("")),
      folder.write("d.jsonl.gz", gzip(json_line(lines[2]).substr(0, json_line(lines[2]).size() - 1)))};
  for (const auto& tokenizer : {small_tokenizer(), load_tokenizer("bytes")}) {
    const Ids expected = encode_all(*tokenizer, {text, other, lines[0], lines[1], lines[2]});
    for (const int threads : {1, 2, 5})
      for (const std::size_t chunk : {64, 1000, 1 << 20}) {
        const TokenizeResult result = tokenize_files(inputs, *tokenizer, folder / "out.bin", {.threads = threads, .chunk_bytes = chunk});
        ASSERT_TRUE(ids_in(folder / "out.bin") == expected) << threads << " threads, chunks of " << chunk;
        EXPECT_EQ(result.train_counts.documents, 5u);
        EXPECT_EQ(result.train_counts.bytes, text.size() + other.size() + lines[0].size() + lines[1].size() + lines[2].size());
        EXPECT_EQ(result.train_counts.tokens, expected.size());
      }
  }
  EXPECT_EQ(folder.listing(), "a.txt b.txt.gz c.jsonl d.jsonl.gz out.bin out.json ");
}

TEST(TokenizeFiles, TakesAnotherField) {
  const TemporaryFolder folder;
  const auto input = folder.write("a.jsonl", R"({"text": "no", "content": "yes"})");
  tokenize_files({input}, *load_tokenizer("bytes"), folder / "out.bin", {.json_field = "content"});
  EXPECT_EQ(ids_in(folder / "out.bin"), (Ids{'y', 'e', 's', 256}));
}

TEST(TokenizeFiles, SplitsOffTheLastDocuments) {
  const TemporaryFolder folder;
  const auto tokenizer = load_tokenizer("bytes");
  std::string lines;
  std::vector<std::string> documents;
  for (int i = 0; i < 100; ++i) {
    documents.push_back(std::string(9 + static_cast<std::size_t>(i) % 3, static_cast<char>('a' + i % 26)));
    lines += json_line(documents.back());
  }
  const auto result = tokenize_files({folder.write("a.jsonl", lines)}, *tokenizer, folder / "out.bin", {.val_fraction = 0.1});
  const Ids train = ids_in(folder / "out.bin"), validation = ids_in(folder / "out.val.bin");
  EXPECT_EQ(result.validation, folder / "out.val.bin");
  EXPECT_EQ(train.back(), 256);
  EXPECT_EQ(validation.back(), 256);
  Ids joined = train;
  joined.insert(joined.end(), validation.begin(), validation.end());
  EXPECT_EQ(joined, encode_all(*tokenizer, documents));
  EXPECT_EQ(result.validation_counts->documents, 10u);
  EXPECT_EQ(result.train_counts.documents, 90u);
  EXPECT_EQ(result.train_counts.bytes, train.size() - 90);
  EXPECT_EQ(result.validation_counts->bytes, validation.size() - 10);
  EXPECT_EQ(result.train_counts.tokens, train.size());
  EXPECT_EQ(result.validation_counts->tokens, validation.size());
}

TEST(TokenizeFiles, SplitsOneTextAtItsLastTokens) {
  const TemporaryFolder folder;
  const std::string text = mixed_text(5, 5'000, false);
  for (const auto& tokenizer : {load_tokenizer("bytes"), small_tokenizer()}) {
    const auto result = tokenize_files({folder.write("a.txt", text)}, *tokenizer, folder / "out.bin", {.val_fraction = 0.05});
    const Ids train = ids_in(folder / "out.bin"), validation = ids_in(folder / "out.val.bin");
    Ids joined = train;
    joined.insert(joined.end(), validation.begin(), validation.end());
    EXPECT_EQ(joined, encode_all(*tokenizer, {text}));
    EXPECT_EQ(validation.size(), static_cast<std::size_t>(std::llround(0.05 * static_cast<double>(joined.size()))));
    EXPECT_EQ(result.train_counts.documents, 1u);
    EXPECT_EQ(result.validation_counts->documents, 1u);
    EXPECT_EQ(result.train_counts.bytes, tokenizer->decode(train).size());
    EXPECT_EQ(result.validation_counts->bytes, tokenizer->decode(validation).size());
  }
}

// Documents by their numbers of tokens, ends included; the expected start for a fraction.
TEST(ValidationSplit, TakesTheNearestEndOfDocumentWithinHalfAndTwiceTheTarget) {
  const TemporaryFolder folder;
  const auto start = [&](const std::vector<std::size_t>& documents, double fraction) {
    Ids ids;
    for (const std::size_t tokens : documents) {
      ids.resize(ids.size() + tokens - 1, 1);
      ids.push_back(9);
    }
    TokenFileWriter writer(folder / "s.bin", TokenFormat::llmc_uint16);
    writer.append(ids);
    writer.finish();
    return validation_start(TokenFile(folder / "s.bin"), 9, fraction);
  };
  EXPECT_EQ(start({50, 40, 10}, 0.1), 90u);
  EXPECT_EQ(start({50, 42, 8}, 0.1), 92u);
  EXPECT_EQ(start({50, 38, 12}, 0.1), 88u);
  EXPECT_EQ(start({50, 38, 5, 7}, 0.1), 88u);  // 12 and 7 are 2 and 3 away
  EXPECT_EQ(start({50, 45, 5}, 0.1), 95u);     // half the target is the least
  EXPECT_EQ(start({50, 46, 4}, 0.1), 90u);     // less: at the target, inside a document
  EXPECT_EQ(start({50, 30, 20}, 0.1), 80u);    // twice the target is the most
  EXPECT_EQ(start({50, 29, 21}, 0.1), 90u);
  EXPECT_EQ(start({100}, 0.1), 90u);     // one text
  EXPECT_EQ(start({100}, 0.0001), 99u);  // never nothing
  EXPECT_EQ(start({100}, 0.9999), 1u);   // nor everything
  EXPECT_EQ(start({10, 90}, 0.9), 10u);
  EXPECT_EQ(start({100'000, 150'000, 50'000}, 0.16), 250'000u);  // more than one block to search
  EXPECT_EQ(start({100'000, 175'000, 25'000}, 0.16), 275'000u);  // found in the second block
  EXPECT_EQ(start({1, 1}, 0.5), 1u);
  EXPECT_ERROR((void)start({1}, 0.5), ExitCode::bad_data, "one token");
}

TEST(Sidecar, CarriesTokenizerAndCounts) {
  const TemporaryFolder folder;
  const auto tokenizer = small_tokenizer();
  const auto result =
      tokenize_files({folder.write("a.txt", mixed_text(6, 1000, false))}, *tokenizer, folder / "out.bin", {.val_fraction = 0.1});
  const Sidecar sidecar = Sidecar::from_json(read_file(result.sidecar), "out.json");
  EXPECT_EQ(result.sidecar, folder / "out.json");
  EXPECT_EQ(sidecar.vocabulary, 274);
  EXPECT_EQ(sidecar.end_of_document, 273);
  EXPECT_EQ(sidecar.train, result.train_counts);
  EXPECT_EQ(sidecar.validation, result.validation_counts);
  EXPECT_EQ(load_tokenizer(folder / "out.json")->to_json(), tokenizer->to_json());

  std::vector<TokenFile> files;
  files.emplace_back(folder / "out.val.bin");
  EXPECT_EQ(describe_token_files(files)->counts, result.validation_counts);
  files.emplace_back(folder / "out.bin");
  const auto both = describe_token_files(files);
  EXPECT_EQ(both->tokenizer->to_json(), tokenizer->to_json());
  EXPECT_EQ(both->counts->bytes, result.train_counts.bytes + result.validation_counts->bytes);
  EXPECT_EQ(both->counts->tokens, result.train_counts.tokens + result.validation_counts->tokens);
}

TEST(Sidecar, IsNotNeededButMustBelong) {
  const TemporaryFolder folder;
  const auto input = folder.write("a.txt", "in the beginning");
  tokenize_files({input}, *small_tokenizer(), folder / "a.bin");
  tokenize_files({input}, *load_tokenizer("bytes"), folder / "b.bin");
  tokenize_files({input}, *small_tokenizer(), folder / "c.bin");
  std::filesystem::remove(folder / "c.json");
  const auto describe = [&](std::initializer_list<const char*> names) {
    std::vector<TokenFile> files;
    for (const char* name : names) files.emplace_back(folder / name);
    return describe_token_files(files);
  };
  EXPECT_FALSE(describe({"c.bin"}));
  EXPECT_TRUE(describe({"a.bin", "c.bin"})->tokenizer);
  EXPECT_FALSE(describe({"a.bin", "c.bin"})->counts);
  EXPECT_ERROR((void)describe({"a.bin", "b.bin"}), ExitCode::bad_data, "a.bin", "b.bin", "another tokenizer");
  std::filesystem::copy_file(folder / "b.json", folder / "c.json");
  EXPECT_ERROR((void)describe({"c.bin"}), ExitCode::bad_data, "c.json", "17 tokens");
  for (const char* text : {"", "{}", "[]", R"({"format": "other", "version": 1})", R"({"format": "baleen-tokens", "version": 2})"}) {
    folder.write("c.json", text);
    EXPECT_ERROR((void)describe({"c.bin"}), ExitCode::bad_data, "c.json", "sidecar");
  }
}

// What was there before stays as it was, and nothing else is left.
TEST(TokenizeFiles, LeavesNothingHalfWritten) {
  const TemporaryFolder folder;
  const auto tokenizer = load_tokenizer("bytes");
  const auto good = folder.write("good.txt", "good text"), archive = folder.write("cut.gz", gzip(mixed_text(7, 500, false)).substr(0, 200));
  const auto lines = folder.write("bad.jsonl", json_line("a") + "\n" + json_line("b") + "{\"text\": }\n" + json_line("c"));
  const auto missing_text = folder.write("none.jsonl", json_line("a") + "{\"txt\": \"a\"}\n"), empty = folder.write("empty.txt", "");
  const auto blank = folder.write("blank.jsonl", "\n \n"), no_text = folder.write("notext.jsonl", json_line(""));
  const TokenizeOptions options{.val_fraction = 0.2, .chunk_bytes = 64};
  tokenize_files({good}, *tokenizer, folder / "out.bin", options);
  const std::string before = folder.listing(), train = read_file(folder / "out.bin"), validation = read_file(folder / "out.val.bin"),
                    sidecar = read_file(folder / "out.json");
  const auto fails = [&](const std::vector<std::filesystem::path>& inputs, ExitCode code, const std::string& message,
                         const std::string& place) {
    SCOPED_TRACE(message);
    EXPECT_ERROR(tokenize_files(inputs, *tokenizer, folder / "out.bin", options), code, message, place);
    EXPECT_EQ(folder.listing(), before);
    EXPECT_EQ(read_file(folder / "out.bin"), train);
    EXPECT_EQ(read_file(folder / "out.val.bin"), validation);
    EXPECT_EQ(read_file(folder / "out.json"), sidecar);
  };
  fails({good, archive}, ExitCode::bad_data, "truncated", "cut.gz");
  fails({good, lines}, ExitCode::bad_data, "invalid JSON", "bad.jsonl, line 4");
  fails({lines, empty}, ExitCode::bad_data, "invalid JSON", "bad.jsonl, line 4");  // the first error counts, though reading fails first
  fails({missing_text}, ExitCode::bad_data, "no \"text\"", "none.jsonl, line 2");
  fails({good, empty}, ExitCode::bad_data, "empty", "empty.txt");
  fails({blank}, ExitCode::bad_data, "no text", "blank.jsonl");
  fails({no_text}, ExitCode::bad_data, "no text", "notext.jsonl");
  fails({good, folder / "missing.txt"}, ExitCode::bad_data, "no such input", "missing.txt");
  fails({folder.path()}, ExitCode::bad_data, "directory", folder.path().string());
  fails({}, ExitCode::bad_config, "no input", "");
  fails({good, folder / "." / "out.bin"}, ExitCode::bad_config, "overwritten", "out.bin");
  fails({folder / "out.json"}, ExitCode::bad_config, "overwritten", "out.json");
  fails({folder.write("out.bin", train)}, ExitCode::bad_config, "overwritten", "out.bin");
}

TEST(TokenizeFiles, RefusesNamesAndOptionsThatCannotBe) {
  const TemporaryFolder folder;
  const auto tokenizer = load_tokenizer("bytes");
  const auto input = folder.write("a.txt", "some text");
  for (const char* name : {"out", "out.txt", "out.val.bin", ".bin", "dir/"})
    EXPECT_ERROR(tokenize_files({input}, *tokenizer, folder / name), ExitCode::bad_config, ".bin");
  for (const double fraction : {-0.1, 1.0, 2.0, std::nan("")})
    EXPECT_ERROR(tokenize_files({input}, *tokenizer, folder / "out.bin", {.val_fraction = fraction}), ExitCode::bad_config,
                 "--val-fraction");
  EXPECT_ERROR(tokenize_files({input}, *tokenizer, folder / "out.bin", {.threads = -1}), ExitCode::bad_config, "threads");
  EXPECT_ERROR(tokenize_files({input}, *tokenizer, folder / "no/out.bin"), ExitCode::bad_data, "no/out.bin");
  EXPECT_ERROR(tokenize_files({folder.write("one.jsonl", json_line("") + "\n")}, *tokenizer, folder / "out.bin", {.val_fraction = 0.5}),
               ExitCode::bad_data, "no text");
  std::filesystem::create_directory(folder / "dir.json");
  EXPECT_ERROR(tokenize_files({input}, *tokenizer, folder / "dir.bin"), ExitCode::bad_config, "dir.json", "folder");
  EXPECT_EQ(folder.listing(), "a.txt dir.json one.jsonl ");
}

TEST(TokenizeFiles, NeverLeavesAnOlderSplitsValidationBesideNewTraining) {
  const TemporaryFolder folder;
  const auto tokenizer = load_tokenizer("bytes");
  const auto input = folder.write("a.txt", "some text that is long enough");
  tokenize_files({input}, *tokenizer, folder / "out.bin", {.val_fraction = 0.2});
  EXPECT_ERROR(tokenize_files({input}, *tokenizer, folder / "out.bin"), ExitCode::bad_config, "out.val.bin", "--val-fraction");
  tokenize_files({input}, *tokenizer, folder / "out.bin", {.val_fraction = 0.4});
  EXPECT_EQ(ids_in(folder / "out.val.bin").size(), 12u);
}

TEST(TokenizeFiles, LeavesNothingWhereTheLastFileCannotBeWritten) {
  const TemporaryFolder folder;
  const auto input = folder.write("a.txt", "some text");
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  struct rlimit small = before;
  small.rlim_cur = 1500;  // the token files fit, the sidecar with its tokenizer does not
  ::setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_ERROR(tokenize_files({input}, *small_tokenizer(), folder / "out.bin", {.val_fraction = 0.2}), ExitCode::bad_data, "File too large",
               "out.json");
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(folder.listing(), "a.txt ");
}

// The other writer is another open file here, which the lock tells apart as it does another process.
TEST(TokenizeFiles, OneWriterAtATimeAndTheFilesBelongTogether) {
  const TemporaryFolder folder;
  const auto tokenizer = load_tokenizer("bytes");
  const auto input = folder.write("a.txt", "the first text"), other = folder.write("b.txt", "another, longer text");
  folder.write("out.bin.lock", "");  // of a writer that was killed, as is this:
  folder.write("out.bin.tmp-0123abcd", "tokens");
  folder.write("out.bin.tmp", "not ours");
  int calls = 0;
  TokenizeOptions options{.val_fraction = 0.2};
  options.progress = [&](std::uint64_t, std::uint64_t) {
    ++calls;
    EXPECT_ERROR(tokenize_files({other}, *tokenizer, folder / "out.bin", {.val_fraction = 0.2}), ExitCode::bad_config, "another process",
                 "out.bin");
  };
  tokenize_files({input}, *tokenizer, folder / "out.bin", options);
  EXPECT_GT(calls, 0);
  EXPECT_EQ(folder.listing(), "a.txt b.txt out.bin out.bin.tmp out.json out.val.bin ");
  EXPECT_EQ(ids_in(folder / "out.bin").size() + ids_in(folder / "out.val.bin").size(), 15u);
  const TokenFile file(folder / "out.bin");
  EXPECT_EQ(describe_token_files({&file, 1})->counts->tokens, file.size());
  tokenize_files({other}, *tokenizer, folder / "out.bin", {.val_fraction = 0.2});  // later it may
  EXPECT_EQ(ids_in(folder / "out.bin").size() + ids_in(folder / "out.val.bin").size(), 21u);
}

TEST(TokenizeFiles, ReportsProgressInBytesOfTheInputs) {
  const TemporaryFolder folder;
  const std::vector<std::filesystem::path> inputs{folder.write("a.txt", mixed_text(8, 3000, false)),
                                                  folder.write("b.gz", gzip(mixed_text(9, 3000, false)))};
  const std::uint64_t total = std::filesystem::file_size(inputs[0]) + std::filesystem::file_size(inputs[1]);
  std::vector<std::uint64_t> seen;
  TokenizeOptions options{.threads = 2, .chunk_bytes = 500};
  options.progress = [&](std::uint64_t done, std::uint64_t of) {
    EXPECT_EQ(of, total);
    seen.push_back(done);
  };
  tokenize_files(inputs, *load_tokenizer("bytes"), folder / "out.bin", options);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  ASSERT_GT(seen.size(), 10u);
  EXPECT_LT(seen.front(), total / 2);
  EXPECT_EQ(seen.back(), total);
}

TEST(DocumentSource, BoundsWhatItHolds) {
  const TemporaryFolder folder;
  const auto tokenizer = small_tokenizer();
  const std::string words = mixed_text(10, 20'000, false);
  DocumentSource source({folder.write("a.txt", words)}, *tokenizer, 1000);
  std::string joined;
  std::size_t chunks = 0;
  while (const auto chunk = source.next()) {
    EXPECT_LE(chunk->content.size(), 2000u);
    joined += chunk->content;
    ++chunks;
  }
  EXPECT_TRUE(joined == words);
  EXPECT_GT(chunks, words.size() / 2000);
  const auto drain = [&](const std::filesystem::path& path) {
    DocumentSource other({path}, *tokenizer, 16);
    while (other.next()) {
    }
  };
  drain(
      folder.write("short.txt", std::string(16 * DocumentSource::max_text_chunks - 1, 'x')));  // to the end without a cut, below the limit
  EXPECT_ERROR(drain(folder.write("long.txt", std::string(40'000, 'x'))), ExitCode::bad_data, "long.txt", "no white space in 16384 bytes");
  EXPECT_ERROR(drain(folder.write("long.jsonl", "{}\n{}\n" + std::string(10'000, ' '))), ExitCode::bad_data, "long.jsonl",
               "line 3 is longer than 4096");
}

TEST(DocumentSource, KnowsJsonLinesByName) {
  for (const char* name : {"a.jsonl", "a.jsonl.gz", "b/a.x.ndjson"}) EXPECT_TRUE(holds_json_lines(name)) << name;
  for (const char* name : {"a.json", "a.gz", "jsonl", "a.jsonl.txt", "a.jsonl/b", "a.gz.jsonl.txt.gz"})
    EXPECT_FALSE(holds_json_lines(name)) << name;
}

}  // namespace
}  // namespace baleen
