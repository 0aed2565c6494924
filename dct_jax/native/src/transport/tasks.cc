#include "transport/tasks.h"

#include <deque>
#include <map>

#include "common/parallel.h"

namespace dct {
namespace {

std::mutex started_mutex;
std::map<int64_t, std::deque<std::shared_ptr<Task>>>& started() {
  static auto* all = new std::map<int64_t, std::deque<std::shared_ptr<Task>>>;
  return *all;
}

}  // namespace

ffi::Error guarded(const std::function<ffi::Error()>& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kUnavailable, std::string("dct_jax: ") + error.what());
  }
}

void start_task(int64_t number, std::shared_ptr<Task> task) {
  std::shared_ptr<Channel> on = channel(number);
  std::lock_guard<std::mutex> lock(started_mutex);
  started()[number].push_back(task);
  on->start([task, raw = on.get()] {
    FlushDenormals mode;
    exchanging(*raw, [&] { task->run(*raw); });
  });
}

std::shared_ptr<Task> finish_task(int64_t number) {
  std::shared_ptr<Task> task;
  {
    std::lock_guard<std::mutex> lock(started_mutex);
    auto& queue = started()[number];
    if (queue.empty()) return nullptr;
    task = queue.front();
    queue.pop_front();
  }
  channel(number)->wait();
  return task;
}

}  // namespace dct
