"""Counts the steps of PyTorch's optimizers with its global hooks, and reports those of one of them.

A process may have several optimizers: a GAN has two, some training loops have one for each parameter, and wrappers such
as schedule-free ones have one within another. Their steps cannot be added up, so one is followed: the one that stepped
first, until another has clearly stepped in more of the last seconds or the followed one is gone.
"""

import os
import sys
import weakref
from time import monotonic

from wattune_hook.report import Reporter

WINDOW_S = 1.0
# An optimizer's score is 1 for each window in which it has stepped, with this weight for each window since: 5 at most.
DECAY = 0.8
# The lead in score with which another optimizer is followed. Two that step in turn differ by 0.6 at most; one that has
# stopped falls behind by more within four windows.
LEAD = 1.0

_torch = None
_compiler_obeys = False
_reporter = None
_counters = {}
_followed = None
_detail = None
_base = 0
_window_ends_s = 0.0


class _Counter:
    """The steps of one optimizer, which it does not keep alive."""

    __slots__ = ("name", "optimizer", "steps", "begun", "open", "score", "seen", "aside", "beside")

    def __init__(self, optimizer, key):
        def drop(_, remove=_counters.pop):
            remove(key, None)

        self.name, self.optimizer = type(optimizer).__name__, weakref.ref(optimizer, drop)
        # `begun`: a step has begun and is not counted yet. `open`: calls of `step` that have begun and not ended.
        self.steps, self.begun, self.open = 0, False, 0
        self.score, self.seen = 0.0, 0
        # `aside`: steps until the followed optimizer had `beside` steps. They are no progress of their own.
        self.aside, self.beside = 0, None


def install(module):
    """Registers the hooks with the module `torch.optim.optimizer`.

    A PyTorch without these hooks, or without a way to keep them out of compiled graphs (before 2.3), is not followed.
    """
    global _torch, _compiler_obeys, _reporter
    before, after = module.register_optimizer_step_pre_hook, module.register_optimizer_step_post_hook
    _torch = sys.modules["torch"]
    # These modules are not loaded yet, or load the compiler.
    if not _source_has("compiler/__init__.py", "def is_compiling("):
        return
    marks = ("._torchdynamo_disable = True", "._dynamo_marked_constant = True")
    _compiler_obeys = _source_has("_dynamo/decorators.py", *marks)
    for function in (_before_step, _after_step, _count):
        _skip_frames_of(function)
    _reporter = Reporter("optimizer_hook", subordinate=True)
    os.register_at_fork(after_in_child=_forget)
    before(_before_step)
    after(_after_step)


def _source_has(path, *texts):
    """Returns whether a file of PyTorch contains all these texts."""
    with open(os.path.join(os.path.dirname(_torch.__file__), path), encoding="utf-8") as file:
        source = file.read()
    return all(text in source for text in texts)


def _before_step(optimizer, _args, _kwargs):
    # torch.compile decides this at compile time and leaves nothing of the hook in the graph.
    if _torch.compiler.is_compiling():
        return
    try:
        key = id(optimizer)
        counter = _counters.get(key)
        if counter is None:
            counter = _counters[key] = _Counter(optimizer, key)
        counter.begun = True
        counter.open += 1
    except Exception:
        pass  # an optimizer that takes no weak reference: it is not followed


def _after_step(optimizer, _args, _kwargs):
    if not _torch.compiler.is_compiling() or (_compiler_obeys and _may_break_graph()):
        _count(optimizer)


def _count(optimizer):
    """Counts a step of this optimizer."""
    global _window_ends_s
    try:
        key = id(optimizer)
        counter = _counters.get(key)
        if counter is None:
            counter = _counters[key] = _Counter(optimizer, key)
        elif counter.open:
            counter.open -= 1
            if not counter.begun:
                return  # the end of a `step` that called `super().step()`, which has been counted
        # None is open where the beginning was compiled and the end was not.
        counter.begun = False
        counter.steps += 1
        if _followed is not None and counter is not _followed and counter.beside != _followed.steps:
            counter.aside, counter.beside = counter.steps - 1, _followed.steps
        now = monotonic()
        if now >= _window_ends_s:
            _window_ends_s = now + WINDOW_S
            _choose()
        if counter is _followed and _reporter.step(_base + counter.steps):
            _reporter.send(None, _detail)
    except Exception:
        pass  # training never fails because of wattune


def _choose():
    """Closes a window and decides which optimizer is followed. The count goes on where the last one's ended."""
    global _followed, _base, _detail
    counters = list(_counters.values())
    for counter in counters:
        counter.score = DECAY * counter.score + (counter.steps != counter.seen)
    best = max(counters, key=lambda counter: counter.score)
    if _followed is None:
        _followed = best
    elif _followed.optimizer() is None or best.score > _followed.score + LEAD:
        _base += _followed.steps - (best.aside if best.beside == _followed.steps else best.steps)
        _followed = best
        for counter in counters:
            counter.beside = None
    for counter in counters:
        counter.seen = counter.steps
    _detail = _followed.name if len(counters) == 1 else f"{_followed.name}, one of {len(counters)} optimizers"


def _forget():
    """Starts anew in a forked child: the steps so far are its parent's."""
    global _followed, _base, _window_ends_s
    _counters.clear()
    _followed, _base, _window_ends_s = None, 0, 0.0


def _may_break_graph():
    """Returns whether a call outside of the graph changes nothing that torch.compile would have made without it.

    The steps of PyTorch's own optimizers end the graph by themselves, so that none is open when the hook is reached.
    Where one is (a user's optimizer, a training step compiled as a whole, fullgraph=True), its steps are not counted.
    """
    try:
        from torch._dynamo.symbolic_convert import InstructionTranslator

        tracer = InstructionTranslator.current_tx()
        whole = tracer.one_graph or getattr(tracer, "error_on_graph_break", False)
        return not whole and tracer.output.count_calls() == 0
    except Exception:
        return False


# As torch._dynamo.assume_constant_result and torch._dynamo.disable do, without loading the compiler: the first is
# called while a graph is compiled and its result is a constant, the second is called between graphs.
_may_break_graph._dynamo_marked_constant = True
_count._torchdynamo_disable = True


def _skip_frames_of(function):
    """Has torch.compile run this function as it is where the function is not called from a graph."""
    try:
        frames = _torch._C._dynamo.eval_frame
        if hasattr(frames, "set_code_exec_strategy"):
            skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
            frames.set_code_exec_strategy(function.__code__, skip)
        else:
            frames.skip_code(function.__code__)
    except Exception:
        pass  # the compiler then looks at these functions, and finds no tensor in them
