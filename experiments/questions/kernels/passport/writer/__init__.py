"""What writes the results of an environment's kernels, with NumPy and the library alone.

Copy this folder beside any release, or put the folder above it on PYTHONPATH:

    python -m writer FOLDER                    # every kernel whose library is installed
    python -m writer FOLDER torch-math,mlx-gelu

FOLDER gets a file for each kernel and type of numbers, which `roundscope kernels --record` judges.
"""
