# One image for every process of the product, and one with the libraries of the demo workers; docker-compose.yml says which
# runs what.
FROM python:3.13.7-slim AS packages
COPY requirements.txt /
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir --require-hashes --requirement /requirements.txt

FROM packages AS demo-packages
COPY examples/requirements.txt /demo.txt
RUN /venv/bin/pip install --no-cache-dir --require-hashes --requirement /demo.txt

FROM python:3.13.7-slim AS product
RUN useradd --uid 10001 --create-home gatehouse && install --directory --owner gatehouse /data /metrics
COPY --from=packages /venv /venv
WORKDIR /gatehouse
COPY . .
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 GATEHOUSE_ENV=production GATEHOUSE_DATA=/data
USER gatehouse
VOLUME /data /metrics
EXPOSE 8000
CMD ["python", "-m", "uvicorn", "config.asgi:application", "--host", "0.0.0.0", "--port", "8000", "--no-access-log", "--no-proxy-headers", "--timeout-graceful-shutdown", "20"]

FROM product AS demo
COPY --from=demo-packages /venv /venv
