#include "comm/mpi/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/log.h"

namespace baleen::mpi {
namespace {

using std::chrono::milliseconds;

constexpr auto patience_for_answers = milliseconds(1000);
constexpr const char* remedy = "look for the first failure named above; the run goes on from its last checkpoint when started again";

// What every rank tells all others when a communicator is made.
struct Claim {
  std::uint64_t signature = 0;
  std::int32_t first = -1, size = 0;  // of the group; -1: takes no part
};

ControlMessage abort_message(std::uint32_t communicator, const std::string& reason) {
  ControlMessage out;
  out.kind = ControlMessage::Kind::abort;
  out.communicator = communicator;
  std::memcpy(out.text.data(), reason.data(), std::min(reason.size(), out.text.size() - 1));
  return out;
}

}  // namespace

Engine::Engine(const EngineOptions& options) : options_(options) {
  // The thread takes no signals: they belong to the thread that holds the StopSignal.
  sigset_t all, previous;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &previous);
  std::promise<void> started;
  std::future<void> start = started.get_future();
  thread_ = std::thread([this, &started] { run(started); });
  pthread_setname_np(thread_.native_handle(), "comm mpi");
  pthread_sigmask(SIG_SETMASK, &previous, nullptr);
  try {
    start.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    attention_ = true;
  }
  woken_.notify_all();
  thread_.join();
}

void Engine::run(std::promise<void>& started) {
  try {
    start_mpi();
  } catch (...) {
    started.set_exception(std::current_exception());
    return;
  }
  started.set_value();
  auto begin = Clock::now();
  while (true) {
    // Rounds are short, because another rank waits for what they find: no lock, and one look at the clock.
    bool busy = false;
    if (attention_.exchange(false, std::memory_order_acquire)) {
      busy = run_posted();
      const std::lock_guard lock(mutex_);
      if (stopping_ && posted_.empty()) break;
    }
    try {
      busy |= pump(begin);
    } catch (const Error& error) {  // MPI itself has failed
      give_up(error.what_is_wrong().c_str());
    } catch (const std::exception& error) {  // no memory
      give_up(error.what());
    }
    const auto end = Clock::now();
    // A round in which MPI has moved data or added takes longer than one that finds nothing.
    begin = rest(busy, end - begin > std::chrono::microseconds(3)) ? Clock::now() : end;
  }
  finish_mpi();
}

void Engine::start_mpi() {
  int initialized = 0, provided = 0;
  check(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized != 0) throw Error(ExitCode::bad_config, "MPI has been started in this process already", "MPI_Init_thread");
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED)
    throw Error(ExitCode::bad_config, "this MPI allows no thread beside the one that calls it", "MPI_Init_thread",
                "use another build of MPI");
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  control_ = std::make_unique<Control>();
  rank_ = control_->rank();
  size_ = control_->size();
}

// MPI_Finalize waits for every rank, so it is called only when all have come here.
void Engine::finish_mpi() {
  if (dead_) return;
  try {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibarrier(control_->comm(), &request), "MPI_Ibarrier");
    const auto deadline = Clock::now() + options_.timeout;
    for (int complete = 0; complete == 0;) {
      if (const auto message = control_->receive()) handle(*message);
      check(MPI_Test(&request, &complete, MPI_STATUS_IGNORE), "MPI_Test");
      if (dead_ || Clock::now() > deadline) {
        log::warning("MPI: left without MPI_Finalize: {}", dead_.value_or("another rank did not come to the end"));
        return;
      }
      std::this_thread::yield();
    }
    control_->close();
    MPI_Finalize();
  } catch (const std::exception& error) {
    log::warning("MPI: {}", error.what());
  }
}

bool Engine::run_posted() {
  bool any = false;
  while (true) {
    std::function<void()> body;
    {
      const std::lock_guard lock(mutex_);
      wake_ = false;
      if (posted_.empty()) return any;
      body = std::move(posted_.front());
      posted_.pop_front();
    }
    body();
    any = true;
  }
}

// One look at everything under way; true when something is.
bool Engine::pump(Clock::time_point now) {
  bool busy = false;
  for (const auto& channel : channels_) {
    if (dead_) {
      channel->fail(Error(ExitCode::rank_failed, *dead_, fmt::format("rank {}, communicator '{}'", rank_, channel->name()), remedy));
      continue;
    }
    if (const auto failure = channel->advance()) fail_channel(*channel, *failure);
    busy |= channel->busy();
  }
  if (dead_) return false;
  if (now - control_looked_ > std::chrono::microseconds(200)) {
    control_looked_ = now;
    while (!dead_) {
      const auto message = control_->receive();
      if (!message) break;
      handle(*message);
    }
  }
  if (!dead_ && now - looked_ > milliseconds(10)) {
    looked_ = now;
    look_for_late();
  }
  return busy;
}

// True when time has passed in it.
bool Engine::rest(bool busy, bool moved) {
  if (!busy) {
    std::unique_lock lock(mutex_);
    woken_.wait_for(lock, milliseconds(20), [&] { return wake_ || stopping_ || !posted_.empty(); });
    idle_rounds_ = 0;
    return true;
  }
  idle_rounds_ = moved ? 0 : idle_rounds_ + 1;
  constexpr int spins = 400, yields = 2000;
  if (idle_rounds_ <= spins) return false;
  if (idle_rounds_ <= spins + yields)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  return true;
}

void Engine::look_for_late() {
  if (inquiry_) {
    if (inquiry_->answers.size() == inquiry_->asked.size() || Clock::now() > inquiry_->until) conclude();
    return;
  }
  for (const auto& channel : channels_) {
    const Operation* late = channel->late(options_.timeout);
    if (late == nullptr) continue;
    Inquiry inquiry{channel->id(),
                    channel->begun(),
                    late->tag(),
                    channel->name(),
                    {},
                    -1,
                    {},
                    std::chrono::duration<double>(options_.timeout).count(),
                    {}};
    for (const int member : channel->members())
      if (member != rank_) inquiry.asked.push_back(member);
    if (late->point_to_point()) inquiry.waits_for = channel->members()[static_cast<std::size_t>(late->root)];
    return ask(std::move(inquiry));
  }
}

void Engine::ask(Inquiry inquiry) {
  inquiry.until = Clock::now() + patience_for_answers;
  ControlMessage question;
  question.kind = ControlMessage::Kind::question;
  question.communicator = inquiry.communicator;
  for (const int peer : inquiry.asked) control_->send(peer, question);
  inquiry_ = std::move(inquiry);
}

// Ends the job with what the answers say.
void Engine::conclude() {
  const Inquiry& q = *inquiry_;
  std::vector<std::string> blamed;
  for (const int peer : q.asked) {
    const auto answer = q.answers.find(peer);
    if (answer == q.answers.end())
      blamed.push_back(fmt::format("rank {} does not answer: stopped, dead or unreachable", peer));
    else if (q.waits_for < 0 && answer->second.begun < q.begun)
      blamed.push_back(fmt::format("rank {} is not in this communicator's operations: it has not come to this one", peer));
    else if (q.waits_for < 0 && answer->second.begun == q.begun && answer->second.tag.kind != 0 && answer->second.tag != q.tag)
      blamed.push_back(fmt::format("rank {} runs {} instead", peer, describe(answer->second.tag)));
    else if (peer == q.waits_for)
      blamed.push_back(fmt::format("rank {} answers, and is in {}", peer, describe(answer->second.tag)));
  }
  std::string reason = fmt::format("communicator '{}': {} on rank {} waited {:.1f} s", q.name, describe(q.tag), rank_, q.waited_s);
  if (q.waits_for >= 0) reason += fmt::format(" for rank {}", q.waits_for);
  reason += "; " + (blamed.empty() ? std::string("all ranks answer and are in it: the link is stuck or slow")
                                   : fmt::format("{}", fmt::join(blamed, ", ")));
  spread(0, reason);
  take_failure(0, reason);
}

void Engine::handle(const ControlMessage& message) {
  switch (message.kind) {
    case ControlMessage::Kind::abort: return take_failure(message.communicator, message.text.data());
    case ControlMessage::Kind::question: return answer(message);
    case ControlMessage::Kind::answer:
      if (inquiry_ && inquiry_->communicator == message.communicator) inquiry_->answers[message.from] = message;
      return;
  }
}

void Engine::answer(const ControlMessage& question) {
  ControlMessage out;
  out.kind = ControlMessage::Kind::answer;
  out.communicator = question.communicator;
  if (question.communicator == 0) {
    out.begun = created_;
    if (creating_) out.tag.kind = static_cast<std::uint8_t>(OperationKind::create);
  }
  for (const auto& channel : channels_)
    if (channel->id() == question.communicator) out.begun = channel->begun(), out.tag = channel->current();
  control_->send(question.from, out);
}

void Engine::spread(std::uint32_t communicator, const std::string& reason) {
  if (dead_) return;
  try {
    control_->send_all(abort_message(communicator, reason));
    control_->flush(milliseconds(500));
  } catch (const std::exception& error) {  // to a rank that is gone: the reason that is told counts
    log::warning("MPI: not every rank could be told: {}", error.what());
  }
}

// No exception leaves the thread: the job ends, and the others are told as far as that is possible.
void Engine::give_up(const char* why) noexcept {
  try {
    const std::string reason = fmt::format("rank {}'s thread of MPI failed: {}", rank_, why);
    spread(0, reason);
    take_failure(0, reason);
  } catch (const std::exception&) {
    if (!dead_) dead_.emplace("out of memory");  // short enough to take none
  }
}

// The first reason counts.
void Engine::take_failure(std::uint32_t communicator, const std::string& reason) {
  aborted_.emplace(communicator, reason);
  if (communicator == 0) {
    if (!dead_) dead_ = reason;
    return;
  }
  for (const auto& channel : channels_)
    if (channel->id() == communicator)
      channel->fail(Error(ExitCode::rank_failed, aborted_.at(communicator),
                          fmt::format("rank {}, communicator '{}'", rank_, channel->name()), remedy));
}

// What stops this rank stops the other members, who wait for it. The others are told first: whoever sees the failure may leave at once.
void Engine::fail_channel(Channel& channel, const Error& error) {
  spread(channel.id(), error.what_is_wrong());
  aborted_.emplace(channel.id(), error.what_is_wrong());
  channel.fail(error);
}

template <class Body>
auto Engine::call(Body body) -> decltype(body()) {
  std::packaged_task<decltype(body())()> task(std::move(body));
  auto result = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    posted_.emplace_back([&task] { task(); });
    attention_ = true;
  }
  woken_.notify_all();
  return result.get();
}

std::shared_ptr<Channel> Engine::create(const std::vector<int>& ranks, const std::string& name, std::atomic<std::uint64_t>& sent,
                                        std::atomic<std::uint64_t>& busy) {
  return call([&] { return make(ranks, name, sent, busy); });
}

std::shared_ptr<Channel> Engine::make(const std::vector<int>& ranks, const std::string& name, std::atomic<std::uint64_t>& sent,
                                      std::atomic<std::uint64_t>& busy) {
  if (dead_) throw Error(ExitCode::rank_failed, *dead_, "creating communicator '" + name + "'", remedy);
  const std::uint32_t id = ++created_;
  struct Creating {
    bool& flag;
    explicit Creating(bool& now) : flag(now) { flag = true; }
    ~Creating() { flag = false; }
  };
  {
    const Creating meanwhile(creating_);
    agree(ranks, name);
  }
  MPI_Comm comm = MPI_COMM_NULL;
  check(MPI_Comm_split(control_->comm(), ranks.empty() ? MPI_UNDEFINED : ranks.front(), rank_, &comm), "MPI_Comm_split");
  if (ranks.empty()) return nullptr;
  check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  Link link{comm, static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin()), static_cast<int>(ranks.size()),
            options_.largest_count, std::make_shared<Spare>()};
  auto channel = std::make_shared<Channel>(id, name, ranks, link, sent, busy);
  channels_.push_back(channel);
  if (const auto early = aborted_.find(id); early != aborted_.end()) take_failure(id, early->second);
  return channel;
}

// Waits until all ranks want a communicator, and holds what they want against each other.
void Engine::agree(const std::vector<int>& ranks, const std::string& name) {
  const Claim mine{group_signature(ranks, ranks.empty() ? "" : name, created_), ranks.empty() ? -1 : ranks.front(),
                   static_cast<std::int32_t>(ranks.size())};
  std::vector<Claim> claims(static_cast<std::size_t>(size_));
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallgather(&mine, sizeof mine, MPI_BYTE, claims.data(), sizeof mine, MPI_BYTE, control_->comm(), &request), "MPI_Iallgather");
  Waited waited;
  for (int complete = 0; complete == 0;) {
    pump(Clock::now());
    if (dead_) throw Error(ExitCode::rank_failed, *dead_, "creating communicator '" + name + "'", remedy);
    check(MPI_Test(&request, &complete, MPI_STATUS_IGNORE), "MPI_Test");
    if (complete == 0 && !inquiry_ && waited.look() > options_.timeout) {
      Inquiry inquiry{0,  created_, {static_cast<std::uint8_t>(OperationKind::create)},      name, {},
                      -1, {},       std::chrono::duration<double>(options_.timeout).count(), {}};
      for (int peer = 0; peer < size_; ++peer)
        if (peer != rank_) inquiry.asked.push_back(peer);
      ask(std::move(inquiry));
    }
    std::this_thread::yield();
  }
  for (int rank = 0; rank < size_; ++rank) {
    const Claim& claim = claims[static_cast<std::size_t>(rank)];
    if (claim.first < 0) continue;
    const auto same = std::count_if(claims.begin(), claims.end(),
                                    [&](const Claim& other) { return other.first == claim.first && other.signature == claim.signature; });
    if (same == claim.size) continue;
    const std::string reason = fmt::format("communicator '{}': rank {} and others came with different groups or names", name, rank);
    spread(0, reason);
    take_failure(0, reason);
    throw Error(ExitCode::rank_failed, reason, "creating communicator '" + name + "'",
                "this is a bug: all ranks must make the same communicators");
  }
}

void Engine::enqueue(Channel& channel, std::shared_ptr<Operation> operation) {
  channel.enqueue(std::move(operation));
  {
    const std::lock_guard lock(mutex_);
    wake_ = true;
    attention_ = true;
  }
  woken_.notify_all();
}

void Engine::close(const std::shared_ptr<Channel>& channel) {
  call([&] {
    if (const std::size_t pending = channel->pending(); pending != 0)
      fail_channel(*channel, Error(ExitCode::rank_failed, fmt::format("rank {} closed communicator '{}' with {} operations pending", rank_,
                                                                      channel->name(), pending)));
    channels_.erase(std::find(channels_.begin(), channels_.end(), channel));
  });
}

void Engine::abort(std::uint32_t communicator, const std::string& reason) {
  call([&] {
    spread(communicator, reason);
    take_failure(communicator, reason);
  });
}

}  // namespace baleen::mpi
