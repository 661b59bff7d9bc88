"""Builds the native module against Python's stable ABI, so that one wheel serves every version from 3.11."""

from setuptools import Extension, setup

ABI = 0x030B0000

setup(
    ext_modules=[
        Extension(
            "fairlead_kafka_records",
            ["src/fairlead_kafka_records.pyx"],
            define_macros=[("Py_LIMITED_API", f"0x{ABI:08X}"), ("CYTHON_USE_TYPE_SPECS", "1")],
            extra_compile_args=["-O3"],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
