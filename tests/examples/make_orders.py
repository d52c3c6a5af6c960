"""Makes `reach/demo_agents/data/orders.csv`: two years of orders of an imaginary office shop, the same ones every time.

    python -m tests.examples.make_orders      writes the file anew

Only `Random.random` is used: of all methods of `random`, it alone is promised to give the same numbers for a seed.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
from pathlib import Path
from random import Random

TARGET = Path(__file__).parents[2] / "reach" / "demo_agents" / "data" / "orders.csv"
COLUMNS = ["order_id", "date", "region", "product", "quantity", "unit_price", "returned"]
ROWS = 400
SEED = 20240101
FIRST_DAY = dt.date(2024, 1, 1)
DAYS = 731  # 2024 is a leap year: up to and with 2025-12-31

# Weights are shares of orders. Prices in euro cents; from 2025 on everything costs 4 % more, rounded to 10 cents.
REGIONS = [("North", 0.31), ("South", 0.22), ("East", 0.19), ("West", 0.28)]
PRODUCTS = [
    # name, weight, price in cents, usual quantity, share returned
    ("Notebook", 0.24, 450, 20, 0.02),
    ("Desk Lamp", 0.16, 3490, 4, 0.07),
    ("Keyboard", 0.15, 5990, 3, 0.09),
    ("Headset", 0.13, 7990, 3, 0.14),
    ("Monitor Arm", 0.11, 10900, 2, 0.05),
    ("Webcam", 0.09, 6450, 2, 0.11),
    ("Office Chair", 0.08, 24900, 2, 0.12),
    ("Standing Desk", 0.04, 49900, 1, 0.06),
]


def make() -> str:
    """The whole file as text."""
    random = Random(SEED)

    def pick(weights: list[float]) -> int:
        point = random.random() * sum(weights)
        for index, weight in enumerate(weights):
            point -= weight
            if point < 0:
                return index
        return len(weights) - 1

    # More orders before the end of a quarter, fewer at weekends and in August.
    days = [FIRST_DAY + dt.timedelta(days=n) for n in range(DAYS)]
    busy = [
        (0.25 if day.weekday() >= 5 else 1.0) * (0.6 if day.month == 8 else 1.4 if day.month % 3 == 0 else 1.0)
        for day in days
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for number, day in enumerate(sorted(days[pick(busy)] for _ in range(ROWS)), 1):
        region = REGIONS[pick([weight for _, weight in REGIONS])][0]
        name, _, cents, usual, returned = PRODUCTS[pick([product[1] for product in PRODUCTS])]
        quantity = max(1, round(usual * (0.4 + 1.6 * random.random() ** 2)))
        price = cents if day.year == 2024 else round(cents * 1.04 / 10) * 10
        back = "yes" if random.random() < returned * (1.5 if region == "South" else 1.0) else "no"
        writer.writerow([1000 + number, day, region, name, quantity, f"{price // 100}.{price % 100:02d}", back])
    return out.getvalue()


if __name__ == "__main__":
    TARGET.write_text(make(), encoding="utf-8", newline="")
