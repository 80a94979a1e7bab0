"""PyTorch's optimizers followed by the hook: what is counted, what is sent, and what stays untouched."""

import json
import os
import socket
import textwrap

import pytest
from listener import SCRIPTS, run

LOOP = """
import sys, time, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
def backward():
    model(torch.ones(2, 4)).pow(2).mean().backward()
"""


def script(text):
    return LOOP + textwrap.dedent(text)


def test_plain_loop(listener):
    """At most one message a second, the last one with the last step, and the same weights and random numbers."""
    ran = listener.run(SCRIPTS / "plain_loop.py", 400)
    without = run(SCRIPTS / "plain_loop.py", 400)
    assert (ran.code, ran.out, ran.err) == (0, without.stdout, without.stderr) and "weights" in ran.out
    assert ran.last_steps("optimizer_hook") == 400
    assert all(m["detail"] == "AdamW" and "total_steps" not in m for m in ran.messages)


def test_pace_and_a_pause(listener):
    """Counts are of the time at which they were taken, also after a pause and at the end."""
    ran = listener.run(script("""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(130):
            backward(); optimizer.step(); time.sleep(0.02)
            if step == 64: time.sleep(2.5)
            last = time.monotonic()
        time.sleep(1.2)
        print(last)
    """))
    messages = ran.of("optimizer_hook")
    assert ran.last_steps("optimizer_hook") == 130
    times = [m["at_s"] for m in messages]
    assert min(later - earlier for earlier, later in zip(times[:-1], times[1:-1])) >= 1.0, times
    assert max(later - earlier for earlier, later in zip(times, times[1:])) >= 2.5, times
    assert abs(messages[-1]["at_s"] - float(ran.out)) < 0.1, "the last step's time, not the process's end"


def test_what_counts_as_a_step(listener):
    """Accumulation, closures, overridden and nested steps, failed steps, optimizers that come and go."""
    ran = listener.run(script("""
        import copy, gc, json, pickle
        import wattune_hook.optimizer as hook
        def count(name): return [c.steps for c in hook._counters.values() if c.name == name]
        counts = {}
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(40):
            backward()
            if step % 8 == 7: sgd.step(); sgd.zero_grad()
        counts["accumulation"] = count("SGD")

        class Own(torch.optim.AdamW):
            fails = False
            def step(self, closure=None):
                super().step(closure)
                if self.fails: raise ValueError("NaN")
        base = torch.optim.AdamW(model.parameters())  # from here on AdamW.step has hooks, and so has Own.step
        own = Own(model.parameters())
        for _ in range(5): own.step()
        own.fails = True
        try: own.step()
        except ValueError: own.fails = False
        for _ in range(5): own.step()
        counts["overridden"] = count("Own")

        lbfgs = torch.optim.LBFGS(model.parameters())
        def closure():
            lbfgs.zero_grad(); backward(); return torch.tensor(0.0)
        for _ in range(3): lbfgs.step(closure)
        counts["closure"] = count("LBFGS")

        class Around(torch.optim.Optimizer):
            def __init__(self, inner): self.inner = inner; super().__init__(inner.param_groups, {})
            def step(self, closure=None): return self.inner.step(closure)
        around = Around(torch.optim.Adam(model.parameters(), foreach=True))
        for _ in range(4): around.step()
        counts["around"] = count("Around") + count("Adam")

        fused = torch.optim.AdamW(model.parameters(), fused=True)
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(3):
            fused.zero_grad(); scaler.scale(model(torch.ones(2, 4)).sum()).backward()
            scaler.step(fused); scaler.update()
        counts["scaler"] = count("AdamW")

        kept = pickle.loads(pickle.dumps(own)); copy.deepcopy(own)
        counts["attributes"] = sorted(k for k in vars(own) if "wattune" in k.lower())
        del lbfgs, closure; gc.collect()
        counts["gone"] = count("LBFGS")
        print(json.dumps(counts))
    """))
    assert ran.code == 0, ran.err
    assert json.loads(ran.out) == {
        "accumulation": [5], "overridden": [11], "closure": [3], "around": [4, 4], "scaler": [3], "attributes": [],
        "gone": [],
    }


def test_two_optimizers_in_turn(listener):
    """A GAN's steps are those of one of them."""
    ran = listener.run(script("""
        one = torch.optim.Adam(model.parameters()); two = torch.optim.RMSprop(model.parameters())
        for _ in range(150):
            for optimizer in (one, two): backward(); optimizer.step()
            time.sleep(0.02)
    """))
    assert ran.last_steps("optimizer_hook") == 150
    assert ran.messages[-1]["detail"] == "Adam, one of 2 optimizers"


def test_another_optimizer_goes_on(listener):
    """The count goes on with an optimizer that takes over, whether or not the first one is kept."""
    for keep in ("kept = one", ""):
        listener.messages.clear()
        ran = listener.run(script(f"""
            one = torch.optim.Adam(model.parameters()); two = torch.optim.RMSprop(model.parameters())
            for _ in range(40): backward(); one.step(); two.step(); time.sleep(0.03)
            {keep}
            one = None
            for _ in range(250): backward(); two.step(); time.sleep(0.03)
        """))
        # What the second one does before the first one's last step does not count.
        assert ran.last_steps("optimizer_hook") == 40 + 251
        assert ran.messages[-1]["detail"].startswith("RMSprop")


def test_inner_loops(listener):
    """Of a steady optimizer and many short-lived ones the steady one is followed."""
    ran = listener.run(script("""
        outer = torch.optim.Adam(model.parameters())
        for _ in range(160):
            inner = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(3): backward(); inner.step()
            outer.step(); time.sleep(0.03)
    """))
    assert ran.messages[-1]["detail"].startswith("Adam"), ran.messages
    late = ran.of("optimizer_hook")[-3:]
    assert len(late) == 3 and late[2]["steps"] - late[1]["steps"] < 60, "outer steps, 33 a second at most"


@pytest.mark.parametrize("whole", [False, True])
def test_compiled(listener, whole):
    """The compiler makes the same graphs, and a whole graph stays whole."""
    text = script(f"""
        import json
        from torch._dynamo.utils import counters
        class Own(torch.optim.Optimizer):
            def __init__(self, params): super().__init__(params, dict(lr=0.1))
            @torch.no_grad()
            def step(self):
                for group in self.param_groups:
                    for p in group["params"]: p.sub_(p.grad, alpha=0.1)
        whole = {whole}
        optimizer = Own(model.parameters()) if whole else torch.optim.Adam(model.parameters())
        step = torch.compile(optimizer.step, backend="eager", fullgraph=whole)
        for _ in range(5):
            model.zero_grad(); backward(); step()
        print(json.dumps([counters["stats"], counters["recompiles"], list(counters["graph_break"].values())]))
        print([p.tolist() for p in model.parameters()])
    """)
    ran, without = listener.run(text), run(text)
    assert without.returncode == 0, without.stderr
    assert (ran.code, ran.out) == (0, without.stdout), ran.err
    if not whole:
        assert ran.last_steps("optimizer_hook") == 5


def test_ranks(listener):
    """Only the first rank of a node reports, or the one in which `wattune run` itself runs."""
    text = script("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nbackward(); optimizer.step()")
    assert listener.run(text, LOCAL_RANK="1").messages == []
    ran = listener.run(text, LOCAL_RANK="1", WATTUNE_LOCAL_RANK="1")
    assert ran.last_steps("optimizer_hook") == 1
    listener.messages.clear()
    assert listener.run(text, LOCAL_RANK="0", RANK="8").last_steps("optimizer_hook") == 1


def test_other_processes(listener):
    """Data loader workers, and forked and spawned children that train: each count is whole and of one process."""
    path = listener.hooks.parent / "script.py"
    path.write_text(script("""
        import os
        import torch.multiprocessing as mp
        def train(rank, steps):
            torch.manual_seed(rank)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(steps): backward(); optimizer.step()
        if __name__ == "__main__":
            data = torch.utils.data.DataLoader(torch.arange(64.0).reshape(16, 4), num_workers=2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for row in data: model(row).sum().backward(); optimizer.step()
            child = os.fork()
            if child == 0:
                train(0, 7)
                sys.exit()
            os.waitpid(child, 0)
            mp.spawn(train, (11,), nprocs=2)
            process = mp.get_context("fork").Process(target=train, args=(0, 9))
            process.start(); process.join()
            train(0, 3)
            print(os.getpid(), child)
    """))
    ran = listener.run(path)
    assert ran.code == 0, ran.err
    parent, child = map(int, ran.out.split())
    last = {m["pid"]: m["steps"] for m in ran.messages}
    # The second optimizer of the parent is followed once the first has been silent, which is not so soon.
    assert last.pop(parent) in (16, 19) and last.pop(child) == 7, ran.messages
    assert sorted(last.values()) == [9, 11, 11], ran.messages


def test_without_a_listener(listener):
    """A full or a lost socket, and descriptors that the script closes, neither delay nor disturb training."""
    text = script("""
        import os
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            backward(); optimizer.step(); time.sleep(1.01)
            begun = time.monotonic(); optimizer.step(); assert time.monotonic() - begun < 0.5
            os.closerange(3, 100)
    """)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as filler:
        with pytest.raises(BlockingIOError):
            while True:
                filler.sendto(b"full", str(listener.path))
    ran = listener.run(text, listen=False)
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    os.unlink(listener.path)
    ran = listener.run(text, listen=False)
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_cost_of_a_step(listener):
    """Below 5 µs beyond what a step costs without the hooks."""
    ran = listener.run(script("""
        import statistics
        class Nothing(torch.optim.Optimizer):
            def __init__(self, params): super().__init__(params, {})
            def step(self): pass
        optimizer = Nothing(model.parameters())
        def measure(n=20000, clock=time.perf_counter_ns):
            times = []
            for _ in range(n):
                begun = clock(); optimizer.step(); times.append(clock() - begun)
            return statistics.median(times)
        module = sys.modules["torch.optim.optimizer"]
        hooks = module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks
        assert all(len(h) == 1 for h in hooks)
        measure(); with_hooks = min(measure() for _ in range(5))
        for h in hooks: h.clear()
        print(with_hooks - min(measure() for _ in range(5)))
    """))
    assert ran.code == 0, ran.err
    assert float(ran.out) < 5000, ran.out
