// Work beside training whose end the ranks tell each other.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "launch/background_thread.h"

namespace baleen {

// Runs one body at a time on a thread of its own and keeps how it ended.
class Background {
 public:
  using Body = std::function<void(const std::stop_token&)>;
  ~Background() {
    if (!thread_.joinable()) return;
    stop_.request_stop();
    thread_.join();
  }

  void start(const std::string& name, Body body) {
    join();
    done_ = false;
    failure_.reset();
    stop_ = std::stop_source();
    thread_ = start_background(name, [this, body = std::move(body)] { run(body); });
  }
  // On the calling thread.
  void run(const Body& body) {
    std::optional<Error> failure;
    try {
      body(stop_.get_token());
    } catch (const Error& error) {
      failure = error;
    } catch (const std::filesystem::filesystem_error& error) {
      failure = Error(ExitCode::bad_data, error.code().message(), error.path1().string(), "check the path and the permissions on it");
    } catch (const std::bad_alloc&) {
      failure = Error(ExitCode::out_of_memory, "no memory on the host");
    } catch (const std::exception& error) {
      failure = Error(ExitCode::check_failed, error.what());
    }
    const std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
    done_ = true;
    changed_.notify_all();
  }
  bool done() const {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  std::optional<Error> failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  void wait_for(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, limit, [&] { return done_; });
  }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = true;
  std::optional<Error> failure_;
  std::stop_source stop_;
  std::thread thread_;
};

}  // namespace baleen
