<?php

declare(strict_types=1);

namespace Hapax;

use Hapax\Internal\State;

/** Takes numbers from servers that share one store, and hands them out from memory. */
final class Client
{
    private readonly array $options;
    private State $state;

    /**
     * @param string|list<string> $servers one or more, which share one store
     * @param string|null $token with the scopes issue and lease, or issue alone; then nothing is handed back
     * @param array $tls options of a context for ssl, such as cafile
     * @param int|null $minStep how many numbers are fetched at once: 10; in a short life 1
     * @param bool|null $ahead whether the next stretch is asked for when half of one is used: true; in a short life false
     * @param float $deadline seconds that a call waits for numbers
     * @param float $callTimeout seconds that one server may take
     * @param bool|null $isShortLived whether it lives for one request of the web: true but on the command line
     */
    public function __construct(
        string|array $servers,
        #[\SensitiveParameter] ?string $token = null,
        array $tls = [],
        ?int $minStep = null,
        int $maxStep = 100_000,
        ?bool $ahead = null,
        float $deadline = 5.0,
        float $callTimeout = 3.0,
        ?bool $isShortLived = null,
        ?\Psr\Log\LoggerInterface $logger = null,
    ) {
        $isShortLived ??= !in_array(PHP_SAPI, ['cli', 'phpdbg', 'embed', 'micro'], true);
        $minStep ??= $isShortLived ? 1 : 10;
        $ahead ??= !$isShortLived;
        $wrong = match (true) {
            PHP_INT_SIZE < 8 => 'integers have 32 bits here: want PHP for 64 bits',
            (array) $servers === [] => 'no server: want at least one, such as http://127.0.0.1:8080',
            $token !== null && !preg_match('/^[!-~]+$/D', $token) => 'invalid token (not shown): want one as hapax token new prints it',
            $minStep < 1 || $maxStep < $minStep || $maxStep > 1_000_000 => "invalid minStep $minStep and maxStep $maxStep: want 1 to 1,000,000, the first no more than the second",
            !($deadline > 0 && $deadline <= 3600) => "invalid deadline $deadline: want more than 0, up to 3600 seconds",
            !($callTimeout > 0 && $callTimeout <= 3600) => "invalid callTimeout $callTimeout: want more than 0, up to 3600 seconds",
            default => null,
        };
        if ($wrong !== null) {
            throw HapaxException::invalid($wrong);
        }
        $this->options = ['servers' => (array) $servers] + compact('token', 'tls', 'minStep', 'maxStep', 'ahead', 'deadline', 'callTimeout', 'isShortLived', 'logger');
        $this->state = new State($this->options, null);
    }

    /** The numbers of a tag, which its first use creates unless the servers forbid that. */
    public function tag(string $name): Tag
    {
        return new Tag($name, $this, $this->options, fn () => $this->here()->check());
    }

    /** Hands back what is in hand. Later calls fail with the code closed. */
    public function close(): void
    {
        $this->here()->close();
    }

    public function __destruct()
    {
        $this->close();
    }

    /** Nobody may have the same numbers in hand. */
    private function __clone()
    {
    }

    public function __serialize(): array
    {
        throw new \LogicException('a client cannot be serialized: its copies would give the same numbers');
    }

    /** The token is not shown. */
    public function __debugInfo(): array
    {
        return ['servers' => $this->options['servers']];
    }

    /** What this process has: a child of fork begins with nothing. */
    private function here(): State
    {
        if (!$this->state->isHere()) {
            $this->state = new State($this->options, $this->state);
        }
        return $this->state;
    }
}
