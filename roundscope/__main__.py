"""`roundscope` and `python -m roundscope`: the command line as a process of its own.

Nothing is imported before Ctrl-C has its ordinary effect, which prints no traceback: signal imports
enum, so that its part inside the interpreter stands here for it.
"""

import _signal as signal


def process() -> None:
    """Run the command line as this process, which does not look for garbage when it ends.

    It opens no window, so it needs no backend of matplotlib, whatever the user's is.
    """
    catches = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if catches:  # not where whoever started this process has it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    import atexit
    import gc
    import os

    gc.disable()  # the start makes no garbage, and to look for it takes a tenth of it
    from roundscope.experiments.cli.main import main

    gc.enable()
    atexit.register(gc.freeze)
    os.environ.pop("MPLBACKEND", None)
    try:
        if catches:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        if catches:  # nor has the end of Python anything to say
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    process()
