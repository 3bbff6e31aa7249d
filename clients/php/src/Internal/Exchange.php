<?php

declare(strict_types=1);

namespace Hapax\Internal;

/** @internal One request and its answer, which is read as it comes. */
final class Exchange
{
    private const MAX_ANSWER = 64 << 20; // bytes

    public int $status = 0;
    /** @var array<string, string> */
    public array $headers = [];
    public string $body = '';
    private string $in = '';
    private bool $isDone = false;
    private bool $isKept = false; // the end of the answer is not that of the connection
    private readonly int $process; // whose answer it is

    /**
     * @param array{float, float, int} $sent the clocks when so many were asked for
     * @param resource $stream which does not block
     */
    public function __construct(public readonly Server $server, public readonly array $sent, public readonly mixed $stream, private string $out, private readonly float $until)
    {
        $this->process = getmypid();
        $this->write();
    }

    /** Whether all of the answer is there; it waits for that until the time. */
    public function isDone(float $until): bool
    {
        while (!$this->isDone) {
            if (State::now() >= $this->until || $this->process !== getmypid()) {
                throw new \RuntimeException('its time is over');
            }
            $this->write();
            $in = (string) @fread($this->stream, 1 << 16);
            $this->in .= $in;
            $this->parse($in === '' && feof($this->stream));
            if ($in !== '' || $this->isDone) {
                continue;
            }
            $left = min($until, $this->until) - State::now();
            if ($left <= 0 && State::now() < $this->until) {
                return false;
            }
            // Not for long: TLS may hold something back that a socket does not show.
            [$read, $write, $except] = [[$this->stream], $this->out === '' ? [] : [$this->stream], []];
            @stream_select($read, $write, $except, 0, (int) (1e6 * max(0.0, min($left, 0.1))));
        }
        return true;
    }

    public function mayGoOn(): bool
    {
        return $this->in === '' && $this->isKept && strcasecmp($this->headers['connection'] ?? '', 'close') !== 0;
    }

    private function write(): void
    {
        $this->out = $this->out === '' ? '' : substr($this->out, (int) @fwrite($this->stream, $this->out));
    }

    private function parse(bool $isEnd): void
    {
        if (strlen($this->in) + strlen($this->body) > self::MAX_ANSWER) {
            throw new \RuntimeException('the answer is too long');
        }
        if ($this->status === 0 && ($at = strpos($this->in, "\r\n\r\n")) !== false) {
            $head = substr($this->in, 0, $at);
            if (!preg_match('~^HTTP/1\.[01] ([2-5][0-9]{2})( |\r|$)~', $head, $line)) {
                throw new \RuntimeException('the answer is not one of HTTP');
            }
            $this->status = (int) $line[1];
            preg_match_all('/^([^:\r\n]+):[ \t]*([^\r\n]*?)[ \t]*\r?$/m', $head, $fields);
            $this->headers = array_combine(array_map(strtolower(...), $fields[1]), $fields[2]);
            $this->in = substr($this->in, $at + 4);
        }
        $this->isDone = $this->status !== 0 && $this->parseBody($isEnd);
        if ($isEnd && !$this->isDone) {
            throw new \RuntimeException('the connection was closed');
        }
    }

    private function parseBody(bool $isEnd): bool
    {
        if (isset($this->headers['transfer-encoding'])) {
            while (preg_match('/^([0-9a-f]{1,7})[^\r\n]*\r\n/i', substr($this->in, 0, 100), $line)) {
                [$head, $size] = [strlen($line[0]), (int) hexdec($line[1])];
                if (strlen($this->in) < $head + $size + 2) {
                    return false;
                }
                $this->body .= substr($this->in, $head, $size);
                $this->in = substr($this->in, $head + $size + 2);
                if ($size === 0) {
                    return $this->isKept = true;
                }
            }
            return false;
        }
        if (!isset($this->headers['content-length'])) {
            [$this->body, $this->in] = [$this->body . $this->in, ''];
            return $isEnd;
        }
        $size = (int) $this->headers['content-length'];
        if (strlen($this->in) < $size) {
            return false;
        }
        [$this->body, $this->in] = [substr($this->in, 0, $size), substr($this->in, $size)];
        return $this->isKept = true;
    }
}
