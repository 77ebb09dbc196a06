"""The twin of each kernel that is called by name: the plan that it is taken to have."""

CLAIMS = {  # compared with the kernel on an H200; see docs/findings/kernels.md
    "sdpa-flash": "fa2",
    "sdpa-cudnn": "cudnn",
    "jax-cudnn": "cudnn",
    "sdpa-efficient": "sdpa-efficient",
    "flex": "flex",
    "eager": "eager",
    "jax-xla": "jax-xla",
    "sdpa-math": "sdpa-math",
    "pallas": "pallas-mha",
    "triton-tutorial": "triton-tutorial",
    "released-eager": "qiu-yao-eager",
    "released-compiled": "qiu-yao-compiled",
}
