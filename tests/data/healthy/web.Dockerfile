FROM python:3.12-slim
WORKDIR /app
COPY pyproject.toml .
RUN pip install --no-cache-dir "fastapi>=0.115" "uvicorn[standard]>=0.30"
COPY src src
EXPOSE 8000
CMD ["uvicorn", "src.main:app", "--host", "0.0.0.0"]
