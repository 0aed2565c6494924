// The Python module dct_jax.native._native: handlers by name, and channels, which are no kernels.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "common/handler.h"
#include "transport/channel.h"

// Every handler, by the name that Python calls it by. Each is defined beside its kernel.
#define DCT_HANDLERS(each)    \
  each(pack)                  \
  each(threshold)             \
  each(all_finite)            \
  each(stop_if)               \
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

// open_channel(rank, sockets, names, timeout) -> number; the channel owns the sockets from now on.
PyObject* open_channel(PyObject*, PyObject* args) {
  int rank;
  double timeout;
  PyObject *sockets, *names;
  if (!PyArg_ParseTuple(args, "iO!O!d", &rank, &PyList_Type, &sockets, &PyList_Type, &names, &timeout)) {
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
  return PyLong_FromLongLong(dct::open_channel(rank, std::move(fds), std::move(labels), timeout));
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

PyMethodDef methods[] = {
    {"timeline", timeline, METH_O, "When a channel's exchanges ran."},
    {"open_channel", open_channel, METH_VARARGS, "Opens a channel over connected sockets."},
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
  if (self) PyModule_AddIntConstant(self, "INTERFACE", 10);
  return self;
}
