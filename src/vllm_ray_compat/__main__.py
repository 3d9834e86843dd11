"""``python -m vllm_ray_compat``: the command line."""

from vllm_ray_compat.cli import main

if __name__ == "__main__":
    main()
