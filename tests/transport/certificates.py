"""Certificates for tests of encrypted connections."""

import shutil
import subprocess

import pytest

from dct_jax.transport import Tls


def make_authority(directory):
  """An authority, and the certificates of a worker that it has signed; as docs/security.md has it."""
  if not shutil.which('openssl'):
    pytest.skip('there is no openssl to make certificates with')
  run = lambda *words: subprocess.run(['openssl', *words], cwd=directory, check=True, capture_output=True)
  curve = ('-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes')
  run('req', '-x509', *curve, '-keyout', 'authority.key', '-out', 'authority.pem', '-days', '30', '-subj', '/CN=run')
  run('req', *curve, '-keyout', 'key.pem', '-out', 'request.pem', '-subj', '/CN=worker')
  run('x509', '-req', '-in', 'request.pem', '-CA', 'authority.pem', '-CAkey', 'authority.key', '-CAcreateserial',
      '-days', '30', '-out', 'certificate.pem')
  return Tls.of(directory)
