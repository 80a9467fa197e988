# agentrl on a CPU: docker build -t agentrl . && docker run --rm -v "$PWD/outputs:/home/agent/outputs" agentrl
FROM python:3.11.14-slim-bookworm

ENV OMP_NUM_THREADS=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY agentrl agentrl
COPY configs configs
COPY examples examples
# torch without CUDA first, from PyTorch's own index; everything else from PyPI
RUN pip install --no-deps --index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' constraints.txt)" \
    && pip install --constraint constraints.txt '.[datasets,lora]' \
    && useradd --create-home --uid 1000 agent

USER 1000
WORKDIR /home/agent
ENTRYPOINT ["agentrl"]
CMD ["quickstart"]
