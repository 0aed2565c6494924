"""Builds the native CPU kernels. Everything else about the package is in setup.cfg."""

import glob
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = 'dct_jax/native/src'


class OptionalBuild(build_ext):
  """A missing compiler must not stop the install: the pure-JAX twins do the work then."""

  def run(self):
    try:
      import jax.ffi  # its headers are those of jaxlib
      for extension in self.extensions:
        extension.extra_compile_args += ['-isystem', jax.ffi.include_dir()]
      super().run()
    except Exception as error:  # whatever broke, the package works without
      print(f'dct_jax: native kernels not built ({error}); using pure JAX', file=sys.stderr)


setup(
    ext_modules=[
        Extension(
            'dct_jax.native._native',
            sources=sorted(glob.glob(f'{SOURCE}/**/*.cc', recursive=True)),
            depends=sorted(glob.glob(f'{SOURCE}/**/*.h', recursive=True)),
            include_dirs=[SOURCE],
            language='c++',
            # No -march=native: a build may move to another processor; AVX2 is chosen at run time.
            # No contraction into FMA: the twins must agree bit for bit.
            extra_compile_args=['-std=c++20', '-O3', '-ffp-contract=off', '-fvisibility=hidden',
                                '-g0'],
            optional=True,
        )
    ],
    cmdclass={'build_ext': OptionalBuild},
)
