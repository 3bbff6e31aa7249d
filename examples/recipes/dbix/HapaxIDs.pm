package HapaxIDs;
# Issues the numbers of one tag, fetched in batches. Safe for programs that fork.
use strict;
use warnings;
use HTTP::Tiny;
use JSON::PP;

sub new {
    my ($class, $tag, %with) = @_;
    my $server = $with{server} // $ENV{HAPAX_SERVER} // 'http://127.0.0.1:8080';
    return bless { url => "$server/v1/tags/$tag/ids?count=" . ($with{count} // 100), batch => [], pid => $$ }, $class;
}

sub next {
    my $self = shift;
    # Parent and child would issue the same rest of a batch.
    @$self{qw(batch pid)} = ([], $$) if $self->{pid} != $$;
    if (!@{ $self->{batch} }) {
        my $answer = HTTP::Tiny->new(timeout => 10)->post($self->{url});
        die "hapax: $answer->{status}: $answer->{content}\n" if !$answer->{success};
        $self->{batch} = decode_json($answer->{content})->{ids};
    }
    return shift @{ $self->{batch} };    # a text, which the database takes as it is
}

1;
