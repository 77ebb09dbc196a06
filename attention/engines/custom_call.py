"""Functions of NumPy arrays as parts of JAX programs on a CPU.

XLA calls them through its foreign function interface (xla/ffi/api/c_api.h in the folder
`jax.ffi.include_dir()`, whose structures are below). A function gets the program's own arrays,
with their types. Nothing of JAX runs meanwhile: `jax.pure_callback` would make JAX arrays of the
arguments first, which may wait for the very thread that it blocks and loses half of 64-bit numbers.
"""

import atexit
import ctypes
import hashlib
import pickle
import time
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from functools import cache
from threading import Lock
from typing import Any, ClassVar

import jax
import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
from jax import Array

TARGET = "roundscope_numpy"
VERSION = 0, 3  # of the interface, whose structures are these; XLA refuses what it does not know
INTERNAL = 13  # the code of an error
TYPES = {
    1: np.dtype(bool),
    5: np.dtype(np.int64),
    8: np.dtype(np.uint32),
    10: np.dtype(np.float16),
    11: np.dtype(np.float32),
    12: np.dtype(np.float64),
    16: np.dtype(ml_dtypes.bfloat16),
}
_functions: dict[str, tuple[Callable[..., Any], tuple[bool, ...]]] = {}


def call(
    function: Callable[..., Any], results: Sequence[tuple[int, ...]], dtype: Any, *arrays: Any
) -> tuple[Array, ...]:
    """Return function(*arrays), which a program of JAX calls when it runs on a CPU.

    A program may be mapped by `jax.vmap`, which calls the function for one entry after the other.
    The function of NumPy arrays can be pickled; it returns the same arrays for the same arguments,
    of these shapes and this type, and does not change the arguments. Some of the JAX arrays may be
    None.

    Raises:
        TypeError: An array has a type that is not among `TYPES`.
    """
    is_given = tuple(x is not None for x in arrays)
    unknown = [x.dtype for x in arrays if x is not None and x.dtype not in TYPES.values()]
    if unknown:
        raise TypeError(f"arrays: type {unknown[0]}, which no call passes on; convert it first")
    # of what the function is, not of where it is, so that compilations can be kept on disk
    key = hashlib.sha256(pickle.dumps((function, is_given))).hexdigest()
    _functions[key] = function, is_given
    with _registering:
        _entered()
    like = [jax.ShapeDtypeStruct(shape, dtype) for shape in results]
    own = jax.ffi.ffi_call(TARGET, like, vmap_method="sequential")
    return tuple(own(*(x for x in arrays if x is not None), function=key))


# What XLA calls. Around the handler it sets the floating-point environment of Python's threads:
# XLA's flush subnormal numbers, as would threads that are started meanwhile. It counts the calls
# that run, and lets none begin once Python ends, when a thread that asks for Python never gets it.
# A call that does not finish, for that reason or since it was interrupted, is an error.
ENTRY = """
@running = global i64 0
@ended = global i64 0
@python = global [64 x i8] zeroinitializer
declare i32 @fegetenv(ptr)
declare i32 @fesetenv(ptr)
define void @remember() {{
  %a = call i32 @fegetenv(ptr @python)
  ret void
}}
define ptr @entry(ptr %frame) {{
  %own = alloca [64 x i8], align 16
  %slot = alloca ptr
  %arguments = alloca {{ i64, ptr, ptr, i32 }}
  store ptr inttoptr (i64 {unfinished} to ptr), ptr %slot
  %n = atomicrmw add ptr @running, i64 1 seq_cst
  %ended = load atomic i64, ptr @ended seq_cst, align 8
  %is_over = icmp ne i64 %ended, 0
  br i1 %is_over, label %unfinished, label %call
call:
  %a = call i32 @fegetenv(ptr %own)
  %b = call i32 @fesetenv(ptr @python)
  %handler = inttoptr i64 {handler} to ptr
  call void %handler(ptr %frame, ptr %slot)
  %c = call i32 @fesetenv(ptr %own)
  %found = load ptr, ptr %slot
  %is_done = icmp ne ptr %found, inttoptr (i64 {unfinished} to ptr)
  br i1 %is_done, label %over, label %interrupted
interrupted:
  %interrupt = inttoptr i64 {interrupt} to ptr
  call void %interrupt()
  br label %unfinished
unfinished:
  store {{ i64, ptr, ptr, i32 }}
    {{ i64 {size}, ptr null, ptr inttoptr (i64 {told} to ptr), i32 {code} }}, ptr %arguments
  %api_at = getelementptr i8, ptr %frame, i64 {api}
  %api = load ptr, ptr %api_at
  %error_at = getelementptr i8, ptr %api, i64 {error}
  %error = load ptr, ptr %error_at
  %made = call ptr %error(ptr %arguments)
  br label %over
over:
  %result = phi ptr [ %found, %call ], [ %made, %unfinished ]
  %m = atomicrmw sub ptr @running, i64 1 seq_cst
  ret ptr %result
}}
"""
UNFINISHED = 1  # no address of an error
TOLD = c_char_p(b"the NumPy engine was interrupted, or the process is ending")
_registering = Lock()


@cache
def _entered() -> Any:
    """Compile and register what XLA calls, once in a process; return what owns the code."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = ENTRY.format(
        unfinished=UNFINISHED,
        handler=ctypes.cast(_handler, c_void_p).value,
        interrupt=ctypes.cast(ctypes.pythonapi.PyErr_SetInterrupt, c_void_p).value,
        size=_ErrorArguments.whole(),
        told=ctypes.cast(TOLD, c_void_p).value,
        code=INTERNAL,
        api=_Frame.api.offset,
        error=_Api.error.offset,
    )
    machine = llvm.Target.from_default_triple().create_target_machine()
    code = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    code.finalize_object()
    entry = ctypes.CFUNCTYPE(c_void_p, c_void_p)(code.get_function_address("entry"))
    ctypes.CFUNCTYPE(None)(code.get_function_address("remember"))()
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(entry), platform="cpu")
    running, ended = (
        c_int64.from_address(code.get_global_value_address(name)) for name in ("running", "ended")
    )

    def end() -> None:
        ended.value = 1
        while running.value:
            time.sleep(0.001)

    atexit.register(end)
    return code


class _Span(Structure):
    _fields_ = (("start", c_void_p), ("size", c_size_t))


class _Sized(Structure):
    _fields_: ClassVar[Any] = (("size", c_size_t), ("next", c_void_p))


class _Version(_Sized):
    _fields_ = (("major", c_int), ("minor", c_int))


class _Metadata(Structure):
    _fields_ = (("size", c_size_t), ("version", _Version), ("traits", c_uint32))


class _Extension(Structure):
    """The extension of a call with which XLA asks for the version of a handler and runs nothing."""

    _fields_ = (
        ("size", c_size_t),
        ("type", c_int),
        ("next", c_void_p),
        ("metadata", POINTER(_Metadata)),
    )


class _Buffer(_Sized):
    _fields_ = (
        ("dtype", c_int),
        ("data", c_void_p),
        ("rank", c_int64),
        ("dims", POINTER(c_int64)),
    )


class _Several(_Sized):
    _fields_: ClassVar[Any] = (("count", c_int64), ("types", c_void_p))


class _Buffers(_Several):
    _fields_ = (("each", POINTER(POINTER(_Buffer))),)


class _Attributes(_Several):
    _fields_ = (("names", c_void_p), ("each", POINTER(POINTER(_Span))))


class _ErrorArguments(_Sized):
    _fields_ = (("message", c_char_p), ("code", c_int))

    @classmethod
    def whole(cls) -> int:
        """Return the size that XLA expects in `size`: up to the end of the last field."""
        return cls.code.offset + cls.code.size


class _Api(_Sized):
    """The start of XLA's own functions."""

    _fields_ = (
        ("version", _Version),
        ("internal", c_void_p),
        ("error", ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArguments))),
    )


class _Frame(Structure):
    """A call of the handler."""

    _fields_ = (
        ("size", c_size_t),
        ("extension", POINTER(_Extension)),
        ("api", POINTER(_Api)),
        ("context", c_void_p),
        ("stage", c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
        ("attributes", _Attributes),
        ("future", c_void_p),
    )


def _handle(pointer: Any, slot: Any) -> None:
    """Run the function that a call names, and write None or an error of XLA's to the slot."""
    frame = pointer.contents
    if frame.extension:
        version = frame.extension.contents.metadata.contents.version
        version.major, version.minor = VERSION
        slot[0] = None
        return
    try:
        _run(frame)
        slot[0] = None
    except KeyboardInterrupt:  # which is raised again where Python goes on
        return
    except BaseException as error:
        told = f"{type(error).__name__}: {error}".encode(errors="replace")
        slot[0] = frame.api.contents.error(
            _ErrorArguments(_ErrorArguments.whole(), None, told, INTERNAL)
        )


_handler = ctypes.CFUNCTYPE(None, POINTER(_Frame), POINTER(c_void_p))(_handle)


def _run(frame: Any) -> None:
    """Compute the results of a call."""
    name = frame.attributes.each[0].contents
    function, is_given = _functions[ctypes.string_at(name.start, name.size).decode()]
    arrays = iter(_arrays(frame.arguments))
    found = function(*(next(arrays) if given else None for given in is_given))
    for result, own in zip(_arrays(frame.results), found, strict=True):
        if result.shape != own.shape:
            raise ValueError(f"a result has shape {own.shape}, and the program {result.shape}")
        result[...] = own


def _arrays(buffers: Any) -> list[np.ndarray]:
    return [_array(buffers.each[n].contents) for n in range(buffers.count)]


def _array(buffer: Any) -> np.ndarray:
    shape = tuple(buffer.dims[: buffer.rank])
    dtype = TYPES[buffer.dtype]
    size = dtype.itemsize * int(np.prod(shape))
    if not size:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_char * size).from_address(buffer.data)
    return np.ndarray(shape, dtype, memory)
