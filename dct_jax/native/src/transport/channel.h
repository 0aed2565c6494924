// A channel: this process's TCP connections to the other workers of a group.
//
// XLA's own collectives move buffers of static size. Here a message is as long as it is: every frame
// says its length. One channel serves one collective; several of them may be in use at once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "transport/frame.h"

namespace dct {

// Frames up to this many bytes are sent to all workers at once, larger ones in turn: to the next worker, then to
// the one after it, ... Then no two begin with the same worker, and its link is not torn between them.
constexpr int64_t kInTurnFrom = 1 << 16;

// Counted since the channel was opened.
struct Traffic {
  uint64_t calls = 0, sent = 0, received = 0;  // bytes with all of their frames
  double seconds = 0;  // spent in exchanges, waiting included
};

struct Event {
  char what;    // 's': started in the background; '(' and ')': an exchange
  double time;  // seconds of the steady clock
};

// Seconds after which a worker counts as gone.
struct Patience {
  double silence;   // in which nothing was sent or received
  double exchange;  // since an exchange began, whatever came: a worker that sends a byte now and then is gone, too
};

class Channel {
 public:
  // `sockets[i]` leads to worker i (-1 at `rank`); the channel owns them from now on.
  Channel(int rank, std::vector<int> sockets, std::vector<std::string> names, const Patience& patience, bool checked);
  ~Channel();
  Channel(const Channel&) = delete;

  int rank() const { return rank_; }
  int size() const { return int(sockets_.size()); }
  const Traffic& traffic() const { return traffic_; }

  // The latest events, oldest first.
  std::vector<Event> timeline();

  // Begins an exchange of one or more rounds, and says what it is about. A worker that says something else is in
  // another program. `name` is for errors.
  void begin(uint32_t kind, std::string name);

  // Sends and receives whole frames: all at once, or (`in_turn`) sends one after the other. Throws Failure
  // when a worker is gone, silent or slow for longer than we have patience, in another call than we are, about to send
  // more than we are ready for, or has sent what is damaged; the channel is of no use then.
  void exchange(const std::vector<Outgoing>& out, std::vector<Incoming>* in, bool in_turn = false);

  // One frame to and from every other worker: `pieces(peer)` goes out, frames of at most `most` bytes come back by
  // worker.
  std::vector<Incoming> exchange_all(const std::function<std::vector<Piece>(int)>& pieces, int64_t most);

  // Closes the channel because of a worker, and throws a Failure that names it: "worker 3 (its name) `what`
  // (exchange 7: its name)".
  [[noreturn]] void fail(int peer, const std::string& what);

  // Closes a channel on which something else went wrong: the others must not wait for us.
  void abandon(const std::string& why);

  // The same frame to every other worker; theirs, of at most `most` bytes, come back by worker. In bulk (all must agree
  // on that) frames travel around a ring: one flow a link and direction, which fills it best. Otherwise directly.
  std::vector<Incoming> gather(const std::vector<Piece>& pieces, bool bulk, int64_t most);

  // Runs a job on the channel's own thread, after those that were started before.
  void start(std::function<void()> job);

  // Waits for the oldest job that nobody has waited for, and throws what it threw. There must be one.
  void wait();

 private:
  void close_all();
  int quietest(const std::vector<int>& peers) const;
  FrameName name_of(uint32_t sequence) const { return {kind_, sequence, checked_}; }
  void serve();
  void note(char what);

  int rank_;
  std::vector<int> sockets_;
  std::vector<std::string> names_;
  Patience patience_;
  bool checked_;
  uint32_t kind_ = 0;
  std::string exchange_;  // what `begin` said
  uint64_t exchanges_ = 0;
  double begun_ = 0;            // when the exchange did
  std::vector<double> moved_;   // when something was last sent to a worker, or received from it
  std::string broken_;
  std::vector<uint32_t> frames_out_, frames_in_;  // by worker: both ends must count alike
  Traffic traffic_;

  std::mutex events_mutex_;
  std::deque<Event> events_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> jobs_;
  std::vector<std::exception_ptr> done_;
  bool ending_ = false;
  std::thread thread_;
};

// Opens a channel (its arguments are those of the constructor) and returns its number, by which handlers and Python
// know it. Numbers are not used again.
int64_t open_channel(int rank, std::vector<int> sockets, std::vector<std::string> names, const Patience& patience,
                     bool checked);

// The channel of a number. Throws Failure if it is not open.
std::shared_ptr<Channel> channel(int64_t number);

// Closes a channel; again does nothing.
void close_channel(int64_t number);

}  // namespace dct
