"""What a generated text holds: thoughts, tool calls and plain content, read as it comes. Knows no HTTP and no engine."""
