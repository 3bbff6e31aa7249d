<?php

declare(strict_types=1);

namespace Hapax;

use Hapax\Internal\{State, Stretch};

/** A tag's numbers. Make it once or each time: it holds nothing. */
final class Tag
{
    private readonly string $path;

    /**
     * @internal
     * @param \Closure(): State $here
     */
    public function __construct(public readonly string $name, private readonly Client $client, private readonly array $options, private readonly \Closure $here)
    {
        if ($name === '' || strlen($name) > 128 || !preg_match('//u', $name)) {
            throw new HapaxException('invalid_tag', 'invalid tag of ' . strlen($name) . ' bytes: want 1 to 128 in UTF-8', true);
        }
        $this->path = '/v1/tags/' . (trim($name, '.') === '' ? str_replace('.', '%2E', $name) : rawurlencode($name));
    }

    /** One number, which nobody else gets. $deadline: seconds to wait if none is in hand. */
    public function next(?float $deadline = null): int
    {
        return $this->take(1, $deadline)[0];
    }

    /**
     * Several numbers.
     *
     * @return list<int>
     */
    public function take(int $count, ?float $deadline = null): array
    {
        $until = $this->until($count, $deadline);
        [$got, $of, $first] = [[], null, null];
        for (;;) {
            $state = ($this->here)();
            // A signal's handler forked since then, and they are the parent's; or the first of them ended while this call waited.
            if ($state !== $of || $first?->isOver()) {
                [$got, $of, $first] = [[], $state, null];
            }
            $line = $state->line($this->name, $this->path);
            $line->awaitAhead(0.0);
            while (count($got) < $count && ($number = $line->next($first)) !== null) {
                $got[] = $number;
            }
            if (count($got) < $count) {
                $line->awaitAhead($until) || array_push($got, ...$line->fetch($count - count($got), $until));
                continue;
            }
            $line->askAhead();
            if ($state->isHere()) { // else it did while this call held them
                return $got;
            }
        }
    }

    /**
     * Several numbers with the texts that show them. None is kept for later.
     *
     * @return list<Code>
     */
    public function codes(int $count = 1, ?float $deadline = null): array
    {
        $until = $this->until($count, $deadline);
        $read = function (array $answer, array $sent): array {
            $numbers = new Stretch($answer, $sent);
            $texts = $answer['codes'] ?? null;
            if (!is_array($texts) || count($texts) !== $numbers->count) {
                throw new \UnexpectedValueException('codes');
            }
            return array_map(fn ($text) => new Code((int) $numbers->next(), (string) $text, (string) ($answer['period'] ?? '')), $texts);
        };
        do {
            $state = ($this->here)();
            $ask = fn () => $state->servers->ask("{$this->path}/take", ['count' => $count, 'codes' => true], $until, $read);
            $codes = $state->line($this->name, $this->path)->persist($count, true, $until, $ask);
        } while (!$state->isHere());
        return $codes;
    }

    private function until(int $count, ?float $deadline): float
    {
        if ($count < 1 || $count > 1_000_000) {
            throw HapaxException::invalid("invalid count $count: want 1 to 1,000,000");
        }
        return State::now() + ($deadline ?? $this->options['deadline']);
    }
}
