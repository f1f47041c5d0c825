#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

namespace baleen::checkpoint {
namespace {

using nlohmann::json;

constexpr std::string_view format_name = "baleen-checkpoint";
constexpr std::size_t manifest_limit = std::size_t{1} << 30;  // bytes
constexpr std::size_t max_dims = 8;

json to_json(const Placement& placement) {
  json box = json::array();
  for (std::size_t dim = 0; dim < placement.box.begin.size(); ++dim) box.push_back({placement.box.begin[dim], placement.box.end[dim]});
  return {{"name", placement.name},
          {"kind", kind_name(placement.kind)},
          {"shape", placement.shape},
          {"box", std::move(box)},
          {"range", {placement.begin, placement.end}}};
}

json to_json(const EntryRecord& entry) {
  json value = to_json(entry.placement);
  value["dtype"] = stored_type_name(entry.type);
  value["tensor"] = entry.tensor;
  value["checksum"] = entry.checksum;
  return value;
}

json to_json(const FileRecord& file) {
  json entries = json::array();
  for (const EntryRecord& entry : file.entries) entries.push_back(to_json(entry));
  return {{"name", file.name}, {"bytes", file.bytes}, {"checksum", file.checksum}, {"entries", std::move(entries)}};
}

std::string checksum_of(const json& document) {
  const std::string text = dump_json(document);
  StreamHash hash;
  hash.update(text.data(), text.size());
  return hash.hex();
}

// A JSON value and the path to it, so that an error names the key.
class Field {
 public:
  Field(const json& value, std::string path, const std::string& where) : value_(value), path_(std::move(path)), where_(where) {}

  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ExitCode::bad_data, fmt::format("malformed checkpoint: {}: {}", path_.empty() ? "manifest" : path_, problem), where_,
                "use another checkpoint, or one from a backup");
  }

  Field operator[](const char* key) const {
    if (!value_.is_object()) fail("not an object");
    const auto found = value_.find(key);
    if (found == value_.end()) fail(fmt::format("key '{}' is missing", key));
    return {*found, path_.empty() ? key : path_ + "." + key, where_};
  }

  std::vector<Field> items(std::size_t limit) const {
    if (!value_.is_array()) fail("not an array");
    if (value_.size() > limit) fail(fmt::format("{} items where {} are allowed", value_.size(), limit));
    std::vector<Field> fields;
    fields.reserve(value_.size());
    for (std::size_t i = 0; i < value_.size(); ++i) fields.emplace_back(value_[i], fmt::format("{}[{}]", path_, i), where_);
    return fields;
  }

  std::int64_t integer(std::int64_t limit) const {
    if (!value_.is_number_unsigned() || value_.get<std::uint64_t>() > static_cast<std::uint64_t>(limit))
      fail(fmt::format("not an integer in 0 … {}", limit));
    return value_.get<std::int64_t>();
  }

  std::string text() const {
    if (!value_.is_string()) fail("not a string");
    return value_.get<std::string>();
  }

  std::string checksum() const {
    const std::string digits = text();
    if (digits.size() != 32 || digits.find_first_not_of("0123456789abcdef") != std::string::npos) fail("not 32 hexadecimal digits");
    return digits;
  }

  // The name of a file of the checkpoint's own folder: never a way out of it.
  std::string file_name() const {
    const std::string name = text();
    const bool plain = !name.empty() && name.size() <= 255 && name.front() != '.' && name.find('/') == std::string::npos &&
                       name.find('\0') == std::string::npos;
    if (!plain) fail(fmt::format("'{}' is not a plain file name", printable(name)));
    return name;
  }

  std::pair<std::int64_t, std::int64_t> range() const {
    const auto ends = items(2);
    if (ends.size() != 2) fail("not a pair [begin, end]");
    return {ends[0].integer(INT64_MAX), ends[1].integer(INT64_MAX)};
  }

 private:
  const json& value_;
  std::string path_;
  const std::string& where_;
};

Placement parse_placement(const Field& field) {
  Placement placement;
  placement.name = field["name"].text();
  const Field kind = field["kind"];
  const auto known = kind_from_name(kind.text());
  if (!known) kind.fail(fmt::format("unknown kind '{}'", printable(kind.text())));
  placement.kind = *known;
  for (const Field& extent : field["shape"].items(max_dims)) placement.shape.push_back(extent.integer(INT64_MAX));
  for (const Field& dim : field["box"].items(max_dims)) {
    const auto [begin, end] = dim.range();
    placement.box.begin.push_back(begin);
    placement.box.end.push_back(end);
  }
  std::tie(placement.begin, placement.end) = field["range"].range();
  if (const std::string problem = placement_problem(placement); !problem.empty()) field.fail(problem);
  return placement;
}

FileRecord parse_file(const Field& field) {
  FileRecord file{
      field["name"].file_name(), static_cast<std::uint64_t>(field["bytes"].integer(INT64_MAX)), field["checksum"].checksum(), {}};
  std::set<std::string> tensors;
  std::uint64_t left = file.bytes;
  for (const Field& item : field["entries"].items(SIZE_MAX)) {
    EntryRecord entry;
    entry.placement = parse_placement(item);
    const Field dtype = item["dtype"];
    const auto type = stored_type_from_name(dtype.text());
    if (type != StoredType::F32 && type != StoredType::BF16)
      dtype.fail(fmt::format("'{}' where F32 or BF16 is needed", printable(dtype.text())));
    entry.type = *type;
    entry.tensor = item["tensor"].text();
    if (!tensors.insert(entry.tensor).second) item["tensor"].fail(fmt::format("'{}' is in the file twice", printable(entry.tensor)));
    const std::string checksum = item["checksum"].checksum();
    entry.checksum = checksum;
    const auto elements = static_cast<std::uint64_t>(entry.placement.elements());
    if (elements > left / stored_type_bytes(entry.type)) item.fail(fmt::format("more data than the file's {} bytes", file.bytes));
    left -= elements * stored_type_bytes(entry.type);
    file.entries.push_back(std::move(entry));
  }
  return file;
}

std::vector<FileRecord> parse_files(const Field& field) {
  std::vector<FileRecord> files;
  std::set<std::string> names;
  for (const Field& item : field.items(SIZE_MAX)) {
    files.push_back(parse_file(item));
    if (!names.insert(files.back().name).second) item["name"].fail(fmt::format("'{}' is listed twice", files.back().name));
  }
  return files;
}

}  // namespace

std::string placement_to_json(const Placement& placement) {
  return dump_json(to_json(placement));
}

std::string serialise_records(const std::vector<FileRecord>& records) {
  json files = json::array();
  for (const FileRecord& record : records) files.push_back(to_json(record));
  return dump_json(json{{"files", std::move(files)}});
}

std::vector<FileRecord> parse_records(std::string_view text, const std::string& where) {
  const json document = parse_json(text, where);
  return parse_files(Field(document, "", where)["files"]);
}

std::string manifest_to_text(const Manifest& manifest) {
  json document = {{"format", format_name},
                   {"version", manifest_version},
                   {"step", manifest.step},
                   {"world", manifest.world},
                   {"training", parse_json(manifest.training, "training state")},
                   {"files", json::array()}};
  for (const FileRecord& file : manifest.files) document["files"].push_back(to_json(file));
  const std::string checksum = checksum_of(document);

  std::string text =
      fmt::format("{{\"format\": \"{}\", \"version\": {},\n \"step\": {}, \"world\": {},\n \"checksum\": \"{}\",\n \"training\": {},\n",
                  format_name, manifest_version, manifest.step, manifest.world, checksum, dump_json(document["training"]));
  text += " \"files\": [";
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const FileRecord& file = manifest.files[i];
    text += fmt::format("{}\n  {{\"name\": {}, \"bytes\": {}, \"checksum\": \"{}\", \"entries\": [", i == 0 ? "" : ",",
                        quote_json(file.name), file.bytes, file.checksum);
    for (std::size_t j = 0; j < file.entries.size(); ++j) text += (j == 0 ? "\n   " : ",\n   ") + dump_json(to_json(file.entries[j]));
    text += "]}";
  }
  return text + "]}\n";
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  json document = parse_json(text, where, {.depth = 64, .values = 100'000'000});
  Manifest manifest;
  {
    const Field root(document, "", where);
    if (const auto format = root["format"].text(); format != format_name)
      root["format"].fail(fmt::format("'{}' is not '{}'", printable(format), format_name));
    const std::int64_t version = root["version"].integer(INT64_MAX);
    if (version != manifest_version)
      root["version"].fail(fmt::format("version {} is not the {} this program reads", version, manifest_version));
    manifest.step = root["step"].integer(INT64_MAX);
    manifest.world = static_cast<int>(root["world"].integer(1'000'000));
    if (manifest.world == 0) root["world"].fail("0 ranks");
    if (!document.contains("training") || !document["training"].is_object()) root.fail("key 'training' is missing or not an object");
    manifest.training = dump_json(document["training"]);
    manifest.files = parse_files(root["files"]);
    const std::string stated = root["checksum"].checksum();
    document.erase("checksum");
    if (checksum_of(document) != stated) root.fail("its content does not match its own checksum: damaged, or edited after it was written");
  }
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  const auto path = checkpoint / manifest_file_name;
  return parse_manifest(read_file(path, manifest_limit), path.string());
}

}  // namespace baleen::checkpoint
