from celery import Celery
from celery.contrib.testing.worker import start_worker

app = Celery(broker="memory://", backend="cache+memory://")


@app.task
def square(number: int) -> int:
    return number * number


@app.task
def fail() -> None:
    raise ValueError("no more")


if __name__ == "__main__":
    with start_worker(app, perform_ping_check=False, pool="solo"):
        print(square.delay(7).get(timeout=10))
        results = [square.delay(number) for number in range(5)]
        print([result.get(timeout=10) for result in results])
        try:
            fail.delay().get(timeout=10)
        except ValueError:
            print("it raised")
