// The Python module dct_jax.kernels._native: a dictionary from handler names to capsules.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

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
  add("encode", DctEncode);
  add("unpack_sum", DctUnpackSum);
  add("settle", DctSettle);
  add("qsgd_encode", DctQsgdEncode);
  add("qsgd_sum", DctQsgdSum);
  return all;
}

PyMethodDef methods[] = {
    {"handlers", handlers, METH_NOARGS, "A dictionary of XLA FFI handlers, as capsules."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", "Native CPU kernels of dct_jax.", -1,
                      methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__native() {
  PyObject* self = PyModule_Create(&module);
  // Raised, here and in native.py, when a kernel's arguments change: a stale library must not be used.
  if (self) PyModule_AddIntConstant(self, "INTERFACE", 2);
  return self;
}
