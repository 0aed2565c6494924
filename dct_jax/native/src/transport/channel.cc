#include "transport/channel.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>

namespace dct {
namespace {

double now() {
  using clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(clock::now().time_since_epoch()).count();
}

bool try_again(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

Channel::Channel(int rank, std::vector<int> sockets, std::vector<std::string> names, const Patience& patience,
                 bool checked)
    : rank_(rank), sockets_(std::move(sockets)), names_(std::move(names)), patience_(patience), checked_(checked),
      moved_(sockets_.size()), frames_out_(sockets_.size()), frames_in_(sockets_.size()) {
  // BBR, some systems' default, paces a connection by what it got lately. Here that is a share of the link in one
  // exchange and all of it in the next, so that it is always behind; CUBIC just fills the link.
  const int yes = 1;
  const char cubic[] = "cubic";
  for (int fd : sockets_) {
    if (fd < 0) continue;
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, cubic, sizeof cubic - 1);  // where there is none: the default
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);  // fails on a local pair: no matter
  }
}

Channel::~Channel() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  for (int fd : sockets_) {
    if (fd >= 0) shutdown(fd, SHUT_RDWR);  // wakes a job that waits for somebody
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  close_all();
}

void Channel::close_all() {
  for (int& fd : sockets_) {
    if (fd >= 0) close(fd);
    fd = -1;
  }
}

void Channel::fail(int peer, const std::string& what) {
  broken_ = "worker " + std::to_string(peer) + " (" + names_[size_t(peer)] + ") " + what + " (exchange " +
            std::to_string(exchanges_) + ": " + exchange_ + ")";
  close_all();  // the others must not wait for us
  throw Failure(broken_);
}

void Channel::begin(uint32_t kind, std::string name) {
  kind_ = kind;
  exchange_ = std::move(name);
  ++exchanges_;
  begun_ = now();
}

int Channel::quietest(const std::vector<int>& peers) const {
  return *std::min_element(peers.begin(), peers.end(),
                           [&](int a, int b) { return moved_[size_t(a)] < moved_[size_t(b)]; });
}

void Channel::note(char what) {
  constexpr size_t kKept = 10000;
  std::lock_guard<std::mutex> lock(events_mutex_);
  events_.push_back({what, now()});
  if (events_.size() > kKept) events_.pop_front();
}

std::vector<Event> Channel::timeline() {
  std::lock_guard<std::mutex> lock(events_mutex_);
  return {events_.begin(), events_.end()};
}

void Channel::abandon(const std::string& why) {
  if (broken_.empty()) broken_ = why;
  close_all();
}

void Channel::exchange(const std::vector<Outgoing>& out, std::vector<Incoming>* in, bool in_turn) {
  if (!broken_.empty()) throw Failure("the channel is closed: " + broken_);
  const double begin = now();
  note('(');
  std::deque<FrameWriter> writers;  // which must stay where they are
  std::vector<FrameReader> readers;
  for (const Outgoing& o : out) {
    writers.emplace_back(o.pieces, name_of(frames_out_[size_t(o.peer)]++));
    traffic_.sent += uint64_t(writers.back().bytes());
    moved_[size_t(o.peer)] = begin;
  }
  for (Incoming& i : *in) {
    readers.emplace_back(&i, name_of(frames_in_[size_t(i.peer)]++));
    moved_[size_t(i.peer)] = begin;
  }

  auto send_some = [&](FrameWriter& w, int peer) {
    while (!w.done()) {
      std::vector<iovec>& parts = w.next();
      msghdr message{};
      message.msg_iov = parts.data();
      message.msg_iovlen = parts.size();
      const ssize_t n = sendmsg(sockets_[size_t(peer)], &message, MSG_NOSIGNAL);
      if (n < 0 && try_again(errno)) return;
      if (n < 0) fail(peer, std::string("cannot be reached: ") + strerror(errno));
      w.advance(size_t(n));
      moved_[size_t(peer)] = now();
    }
  };
  auto receive_some = [&](FrameReader& r) {
    const int peer = r.to()->peer;
    while (!r.done()) {
      const FrameReader::Room room = r.room();
      const ssize_t n = recv(sockets_[size_t(peer)], room.at, size_t(room.count), 0);
      if (n < 0 && try_again(errno)) return;
      if (n < 0) fail(peer, std::string("cannot be reached: ") + strerror(errno));
      if (n == 0) fail(peer, "has closed its connection; it, or a worker it depends on, has stopped");
      moved_[size_t(peer)] = now();
      try {
        r.take(n);
      } catch (const BadFrame& bad) {
        fail(peer, bad.what());
      }
    }
  };

  double progress = begin;
  for (;;) {
    std::vector<pollfd> waits;
    std::vector<int> peers;
    auto want = [&](int peer, short events) {
      for (size_t i = 0; i < peers.size(); ++i) {
        if (peers[i] == peer) { waits[i].events |= events; return; }
      }
      peers.push_back(peer);
      waits.push_back({sockets_[size_t(peer)], events, 0});
    };
    for (size_t i = 0; i < writers.size(); ++i) {
      send_some(writers[i], out[i].peer);
      if (writers[i].done()) continue;
      want(out[i].peer, POLLOUT);
      if (in_turn) break;
    }
    for (FrameReader& r : readers) {
      receive_some(r);
      if (!r.done()) want(r.to()->peer, POLLIN);
    }
    if (waits.empty()) break;
    const double until = std::min(progress + patience_.silence, begun_ + patience_.exchange);
    const int left = int(std::max(0.0, std::min(1.0, until - now())) * 1000) + 1;
    const int ready = poll(waits.data(), nfds_t(waits.size()), left);
    const double time = now();
    if (ready > 0) progress = time;
    if (time - progress > patience_.silence) {
      fail(quietest(peers), "has not answered for " + std::to_string(int64_t(patience_.silence)) +
                                " s: it is gone or stuck, or waits for one that is");
    }
    if (time - begun_ > patience_.exchange) {
      fail(quietest(peers), "was not done when the exchange had taken " + std::to_string(int64_t(patience_.exchange)) +
                                " s, its deadline: it is too slow, or waits for one that is");
    }
  }
  for (const FrameReader& r : readers) traffic_.received += uint64_t(r.got());
  note(')');
  ++traffic_.calls;
  traffic_.seconds += now() - begin;
}

std::vector<Incoming> Channel::exchange_all(const std::function<std::vector<Piece>(int)>& pieces, int64_t most) {
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
  int64_t largest = 0;
  for (int i = 1; i < size(); ++i) {
    out.push_back({(rank_ + i) % size(), pieces((rank_ + i) % size())});
    in.push_back({(rank_ + size() - i) % size(), most});
    int64_t bytes = 0;
    for (const Piece& piece : out.back().pieces) bytes += piece.bytes;
    largest = std::max(largest, bytes);
  }
  exchange(out, &in, largest > kInTurnFrom);
  std::sort(in.begin(), in.end(), [](auto& a, auto& b) { return a.peer < b.peer; });
  return in;
}

std::vector<Incoming> Channel::gather(const std::vector<Piece>& pieces, bool bulk, int64_t most) {
  if (!bulk) return exchange_all([&](int) { return pieces; }, most);
  const int next = (rank_ + 1) % size(), before = (rank_ + size() - 1) % size();
  std::vector<Incoming> all;
  for (int i = 1; i < size(); ++i) {
    std::vector<Piece> parcel = pieces;  // ours first, then what came last
    if (i > 1) parcel = {{all.back().frame.begin(), all.back().frame.size}};
    std::vector<Incoming> one;
    one.push_back({before, most});
    exchange({{next, parcel}}, &one);
    one[0].peer = (rank_ + size() - i) % size();  // whose it was
    all.push_back(std::move(one[0]));
  }
  std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.peer < b.peer; });
  return all;
}

void Channel::start(std::function<void()> job) {
  note('s');
  std::lock_guard<std::mutex> lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  jobs_.push_back(std::move(job));
  changed_.notify_all();
}

void Channel::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return !done_.empty(); });
  std::exception_ptr error = done_.front();
  done_.erase(done_.begin());
  if (error) std::rethrow_exception(error);
}

void Channel::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !jobs_.empty(); });
    if (ending_) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.erase(jobs_.begin());
    lock.unlock();
    std::exception_ptr error;
    try {
      job();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    done_.push_back(error);
    changed_.notify_all();
  }
}

namespace {
std::mutex registry_mutex;
std::map<int64_t, std::shared_ptr<Channel>>& registry() {
  static auto* all = new std::map<int64_t, std::shared_ptr<Channel>>;  // outlives every thread
  return *all;
}
int64_t next_number = 0;
}  // namespace

int64_t open_channel(int rank, std::vector<int> sockets, std::vector<std::string> names, const Patience& patience,
                     bool checked) {
  auto made = std::make_shared<Channel>(rank, std::move(sockets), std::move(names), patience, checked);
  std::lock_guard<std::mutex> lock(registry_mutex);
  registry()[next_number] = std::move(made);
  return next_number++;
}

std::shared_ptr<Channel> channel(int64_t number) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  auto found = registry().find(number);
  if (found == registry().end()) throw Failure("channel " + std::to_string(number) + " is not open");
  return found->second;
}

void close_channel(int64_t number) {
  std::shared_ptr<Channel> last;
  std::lock_guard<std::mutex> lock(registry_mutex);
  auto found = registry().find(number);
  if (found == registry().end()) return;
  last = std::move(found->second);
  registry().erase(found);
}

}  // namespace dct
