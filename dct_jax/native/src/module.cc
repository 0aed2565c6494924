// The Python module dct_jax.native._native: a dictionary from handler names to capsules.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "transport/channel.h"
#include "handlers.h"

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(DctPack, dct::Pack,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .RemainingRets()
                                  .Attr<int64_t>("segment")
                                  .Attr<bool>("feedback")
                                  .Attr<int64_t>("value_codec"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(DctThreshold, dct::Threshold,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .Attr<int64_t>("segment")
                                  .Attr<bool>("feedback"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(DctAllFinite, dct::AllFinite,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::U32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(DctStopIf, dct::StopIf,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .Attr<bool>("stop_nonfinite"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(DctEncode, dct::Encode,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .Attr<int64_t>("universe")
                                  .Attr<int64_t>("unit")
                                  .Attr<int64_t>("index_codec")
                                  .Attr<int64_t>("value_codec"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(DctUnpackSum, dct::UnpackSum,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .RemainingRets()
                                  .Attr<int64_t>("dense_layers")
                                  .Attr<int64_t>("unit")
                                  .Attr<int64_t>("value_codec"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(DctSettle, dct::Settle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("dense_layers")
                                  .Attr<int64_t>("unit")
                                  .Attr<int64_t>("value_codec"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(DctQsgdEncode, dct::QsgdEncode,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .RemainingRets()
                                  .Attr<int64_t>("bits")
                                  .Attr<int64_t>("bucket")
                                  .Attr<bool>("feedback"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(DctQsgdSum, dct::QsgdSum,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .RemainingRets()
                                  .Attr<int64_t>("dense_layers")
                                  .Attr<int64_t>("bits")
                                  .Attr<int64_t>("bucket"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(DctThreeLcEncode, dct::ThreeLcEncode,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .RemainingRets()
                                  .Attr<float>("multiplier")
                                  .Attr<bool>("zero_runs")
                                  .Attr<bool>("feedback"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(DctThreeLcSum, dct::ThreeLcSum,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .RemainingRets()
                                  .Attr<int64_t>("dense_layers"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(DctGatherMessages, dct::GatherMessages,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .Attr<int64_t>("channel"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(DctScatterMessages, dct::ScatterMessages,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .Attr<int64_t>("channel"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(DctReduceMessages, dct::ReduceMessages,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .RemainingRets()
                                  .Attr<int64_t>("channel")
                                  .Attr<int64_t>("dense_layers")
                                  .Attr<int64_t>("unit")
                                  .Attr<int64_t>("value_codec")
                                  .Attr<int64_t>("index_codec")
                                  .Attr<double>("delta")
                                  .Attr<int64_t>("bits")
                                  .Attr<int64_t>("bucket"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(DctReduceMessagesStart, dct::ReduceMessagesStart,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .Attr<int64_t>("channel")
                                  .Attr<ffi::Span<const int64_t>>("sizes")
                                  .Attr<int64_t>("dense_layers")
                                  .Attr<int64_t>("unit")
                                  .Attr<int64_t>("value_codec")
                                  .Attr<int64_t>("index_codec")
                                  .Attr<double>("delta")
                                  .Attr<int64_t>("bits")
                                  .Attr<int64_t>("bucket"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(DctReduceStream, dct::ReduceStream,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::U32>>()
                                  .RemainingRets()
                                  .Attr<int64_t>("channel")
                                  .Attr<int64_t>("size")
                                  .Attr<int64_t>("op")
                                  .Attr<int64_t>("index_codec")
                                  .Attr<double>("delta")
                                  .Attr<int64_t>("bits")
                                  .Attr<int64_t>("bucket"));

namespace {

PyObject* handlers(PyObject*, PyObject*) {
  PyObject* all = PyDict_New();
  auto add = [&](const char* name, XLA_FFI_Handler* handler) {
    PyObject* capsule = PyCapsule_New(reinterpret_cast<void*>(handler), nullptr, nullptr);
    PyDict_SetItemString(all, name, capsule);
    Py_XDECREF(capsule);
  };
  add("pack", DctPack);
  add("threshold", DctThreshold);
  add("all_finite", DctAllFinite);
  add("stop_if", DctStopIf);
  add("encode", DctEncode);
  add("unpack_sum", DctUnpackSum);
  add("settle", DctSettle);
  add("qsgd_encode", DctQsgdEncode);
  add("qsgd_sum", DctQsgdSum);
  add("three_lc_encode", DctThreeLcEncode);
  add("three_lc_sum", DctThreeLcSum);
  add("gather_messages", DctGatherMessages);
  add("scatter_messages", DctScatterMessages);
  add("reduce_messages", DctReduceMessages);
  add("reduce_messages_start", DctReduceMessagesStart);
  add("reduce_stream", DctReduceStream);
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
  if (self) PyModule_AddIntConstant(self, "INTERFACE", 9);
  return self;
}
