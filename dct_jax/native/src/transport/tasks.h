// Exchanges as handlers run them: in one piece, or in two, start and wait, between which the program goes on computing.
#pragma once

#include <functional>
#include <memory>

#include "common/handler.h"
#include "transport/channel.h"

namespace dct {

// A piece of work on a channel, with its own copy of what it needs.
class Task {
 public:
  virtual ~Task() = default;
  virtual void run(Channel& channel) = 0;
};

// body(), with exceptions as errors that XLA knows.
ffi::Error guarded(const std::function<ffi::Error()>& body);

// Runs an exchange; when anything in it fails, the others must not wait for us.
template <typename Body>
auto exchanging(Channel& on, const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    on.abandon(error.what());
    throw;
  }
}

// Starts a task on the thread of a channel.
void start_task(int64_t number, std::shared_ptr<Task> task);

// The oldest task that was started on a channel, finished; none if nothing was. Throws what it threw.
std::shared_ptr<Task> finish_task(int64_t number);

}  // namespace dct
