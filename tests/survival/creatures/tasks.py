"""asyncio: tasks, queues, a child's pipes, a timer that is due soon and one that is not."""

import asyncio

from stage import STAGES, reached, say

beats = 0


async def beat() -> None:
    global beats
    while True:
        await asyncio.sleep(0.02)
        beats += 1


async def answer(questions: asyncio.Queue[int], answers: asyncio.Queue[int]) -> None:
    while True:
        await answers.put(await questions.get() * 7)


async def main() -> None:
    loop = asyncio.get_running_loop()
    questions: asyncio.Queue[int] = asyncio.Queue()
    answers: asyncio.Queue[int] = asyncio.Queue()
    tasks = [asyncio.create_task(beat()), asyncio.create_task(answer(questions, answers))]
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec("/bin/cat", stdin=pipe, stdout=pipe)
    late = loop.call_later(3600, say, "an hour is over")
    say("ready")
    for stage in STAGES:
        while not reached(stage):
            await asyncio.sleep(0.02)
        before = beats
        async with asyncio.timeout(20):
            while beats < before + 3:
                await asyncio.sleep(0.01)
            await questions.put(6)
            assert await answers.get() == 42
            child.stdin.write(b"through the pipe\n")
            assert await child.stdout.readline() == b"through the pipe\n"
            await asyncio.to_thread(sum, range(1000))
        assert 3000 < late.when() - loop.time() <= 3600
        assert not any(task.done() for task in tasks)
        say(f"{stage}: survived")


asyncio.run(main())
