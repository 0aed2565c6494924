// The Python module dct_jax.native._native: handlers by name; channels and memory that threads share, which XLA does
// not know.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "common/crc32c.h"
#include "common/handler.h"
#include "kernels/shared_memory.h"
#include "transport/channel.h"

// Every handler, by the name that Python calls it by. Each is defined beside its kernel.
#define DCT_HANDLERS(each)    \
  each(pack)                  \
  each(threshold)             \
  each(all_finite)            \
  each(encode)                \
  each(unpack_sum)            \
  each(settle)                \
  each(qsgd_encode)           \
  each(qsgd_sum)              \
  each(three_lc_encode)       \
  each(three_lc_sum)          \
  each(sketch_insert)         \
  each(sketch_query)          \
  each(gather_messages)       \
  each(scatter_messages)      \
  each(reduce_messages)       \
  each(reduce_messages_start) \
  each(reduce_stream)

#define DCT_DECLARE(name) XLA_FFI_DECLARE_HANDLER_SYMBOL(DCT_HANDLER_SYMBOL(name));
DCT_HANDLERS(DCT_DECLARE)

namespace {

PyObject* handlers(PyObject*, PyObject*) {
  PyObject* all = PyDict_New();
  auto add = [&](const char* name, XLA_FFI_Handler* handler) {
    PyObject* capsule = PyCapsule_New(reinterpret_cast<void*>(handler), nullptr, nullptr);
    PyDict_SetItemString(all, name, capsule);
    Py_XDECREF(capsule);
  };
#define DCT_ADD(name) add(#name, DCT_HANDLER_SYMBOL(name));
  DCT_HANDLERS(DCT_ADD)
  return all;
}

// open_channel(rank, sockets, names, timeout, deadline, checked) -> number; the channel owns the sockets from now on.
PyObject* open_channel(PyObject*, PyObject* args) {
  int rank, checked;
  dct::Patience patience;
  PyObject *sockets, *names;
  if (!PyArg_ParseTuple(args, "iO!O!ddp", &rank, &PyList_Type, &sockets, &PyList_Type, &names, &patience.silence,
                        &patience.exchange, &checked)) {
    return nullptr;
  }
  std::vector<int> fds;
  std::vector<std::string> labels;
  for (Py_ssize_t i = 0; i < PyList_Size(sockets); ++i) {
    fds.push_back(int(PyLong_AsLong(PyList_GetItem(sockets, i))));
    const char* label = PyUnicode_AsUTF8(PyList_GetItem(names, i));
    labels.push_back(label ? label : "");
  }
  if (PyErr_Occurred()) return nullptr;
  return PyLong_FromLongLong(dct::open_channel(rank, std::move(fds), std::move(labels), patience, checked));
}

// crc32c(bytes, before=0, tables=False): CRC32C of bytes that follow others, whose CRC32C is `before`.
PyObject* crc32c(PyObject*, PyObject* args) {
  Py_buffer bytes;
  unsigned before = 0;
  int tables = 0;
  if (!PyArg_ParseTuple(args, "y*|Ip", &bytes, &before, &tables)) return nullptr;
  uint32_t sum;
  Py_BEGIN_ALLOW_THREADS
  sum = dct::crc32c(before, bytes.buf, bytes.len, tables);
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&bytes);
  return PyLong_FromUnsignedLong(sum);
}

PyObject* close_channel(PyObject*, PyObject* number) {
  const long long n = PyLong_AsLongLong(number);
  Py_BEGIN_ALLOW_THREADS
  dct::close_channel(n);
  Py_END_ALLOW_THREADS
  Py_RETURN_NONE;
}

// traffic(number) -> (exchanges, bytes sent, bytes received, seconds)
PyObject* traffic(PyObject*, PyObject* number) {
  try {
    const dct::Traffic t = dct::channel(PyLong_AsLongLong(number))->traffic();
    return Py_BuildValue("KKKd", (unsigned long long)t.calls, (unsigned long long)t.sent,
                         (unsigned long long)t.received, t.seconds);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

// timeline(number) -> [(what, seconds on the clock of time.perf_counter)]: 's'tarted, exchange '(' begun, ')' ended.
PyObject* timeline(PyObject*, PyObject* number) {
  try {
    PyObject* out = PyList_New(0);
    for (const dct::Event& event : dct::channel(PyLong_AsLongLong(number))->timeline()) {
      PyObject* pair = Py_BuildValue("Cd", int(event.what), event.time);
      PyList_Append(out, pair);
      Py_XDECREF(pair);
    }
    return out;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

// Buffers of Python objects, of equal length, held until the end of a call. The first one may be written.
class Buffers {
 public:
  Buffers(PyObject* args, int count, const char* format) {
    Py_buffer* v = views_;
    ok_ = count == 2 ? PyArg_ParseTuple(args, format, v, v + 1) : PyArg_ParseTuple(args, format, v, v + 1, v + 2);
    count_ = ok_ ? count : 0;
    for (int i = 1; i < count_ && ok_; ++i) ok_ = v[i].len == v[0].len && v[i].len % 4 == 0;
    if (count_ && !ok_) PyErr_SetString(PyExc_ValueError, "arrays must have as many words of four bytes each");
  }
  ~Buffers() {
    for (int i = 0; i < count_; ++i) PyBuffer_Release(&views_[i]);
  }
  explicit operator bool() const { return ok_; }
  template <typename T>
  T* as(int i) { return static_cast<T*>(views_[i].buf); }
  int64_t words() const { return views_[0].len / 4; }

 private:
  Py_buffer views_[3];
  int count_ = 0;
  bool ok_ = false;
};

// shared_read(copy, shared): copies memory that other threads may write.
PyObject* shared_read(PyObject*, PyObject* args) {
  Buffers buffers(args, 2, "w*y*");
  if (!buffers) return nullptr;
  Py_BEGIN_ALLOW_THREADS
  dct::shared_read(buffers.as<uint32_t>(1), buffers.as<uint32_t>(0), buffers.words());
  Py_END_ALLOW_THREADS
  Py_RETURN_NONE;
}

// shared_write_float32(shared, before, after), and the same of int32.
template <typename T>
PyObject* shared_write(PyObject*, PyObject* args) {
  Buffers buffers(args, 3, "w*y*y*");
  if (!buffers) return nullptr;
  Py_BEGIN_ALLOW_THREADS
  dct::shared_write<T>(buffers.as<T>(0), buffers.as<T>(1), buffers.as<T>(2), buffers.words());
  Py_END_ALLOW_THREADS
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"shared_read", shared_read, METH_VARARGS, "Copies memory that other threads may write."},
    {"shared_write_float32", shared_write<float>, METH_VARARGS, "Writes memory that other threads may write."},
    {"shared_write_int32", shared_write<uint32_t>, METH_VARARGS, "Writes memory that other threads may write."},
    {"timeline", timeline, METH_O, "When a channel's exchanges ran."},
    {"open_channel", open_channel, METH_VARARGS, "Opens a channel over connected sockets."},
    {"crc32c", crc32c, METH_VARARGS, "CRC32C of bytes."},
    {"close_channel", close_channel, METH_O, "Closes a channel."},
    {"traffic", traffic, METH_O, "What a channel has moved."},
    {"handlers", handlers, METH_NOARGS, "A dictionary of XLA FFI handlers, as capsules."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", "Native CPU kernels of dct_jax.", -1,
                      methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__native() {
  PyObject* self = PyModule_Create(&module);
  // Raised, here and in loader.py, when a kernel's arguments change: a stale library must not be used.
  if (self) PyModule_AddIntConstant(self, "INTERFACE", 13);
  return self;
}
