"""On which device a call ran, as files and libraries say it, and which plans are of another one."""

CPUS = ("cpu", "x86_64", "amd64", "aarch64", "arm64", "ppc64le", "riscv64")
OF_CPU = ("-cpu",)  # in the names of plans of operations
OF_GPU = ("-cuda", "liger", "hopper", "mxfp", "nvfp")


def kind_of(device: str | None) -> str:
    """Return "cpu" or "gpu" for the words of a device, and "" where nothing is said.

    Example:
        >>> kind_of("x86_64"), kind_of("NVIDIA H100 80GB HBM3"), kind_of("cuda:0"), kind_of(None)
        ('cpu', 'gpu', 'gpu', '')
    """
    if not device:
        return ""
    return "cpu" if device.lower() in CPUS else "gpu"


def is_elsewhere(name: str, kind: str) -> bool:
    """Return whether a plan of an operation is that of a library on another kind of device.

    Example:
        >>> is_elsewhere("torch-cuda", "cpu"), is_elsewhere("transformers-llama", "cpu")
        (True, False)
        >>> is_elsewhere("torch-cuda", "")
        False
    """
    other = {"cpu": OF_GPU, "gpu": OF_CPU}.get(kind, ())
    return any(word in name for word in other)
