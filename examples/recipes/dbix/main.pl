# DBIx::Class: each row takes a number from hapax when it is inserted.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;

our $orders;

package Shop::Result::Order;
use base 'DBIx::Class::Core';
__PACKAGE__->table('recipe_dbix');
__PACKAGE__->add_columns(id => { data_type => 'bigint' }, what => { data_type => 'text' });
__PACKAGE__->set_primary_key('id');

sub insert {
    my $self = shift;
    $self->id($main::orders->next) if !defined $self->id;
    return $self->next::method(@_);
}

package Shop;
use base 'DBIx::Class::Schema';
__PACKAGE__->register_class(Order => 'Shop::Result::Order');

package main;
use HapaxIDs;

my ($user, $password, $host, $port, $name) = $ENV{DATABASE_URL} =~ m{^postgres(?:ql)?://([^:@]+)(?::([^@]*))?\@([^:/]+):(\d+)/([^?]+)}
    or die "DATABASE_URL is no URL of PostgreSQL\n";
my @connect = ("dbi:Pg:host=$host;port=$port;dbname=$name", $user, $password, { RaiseError => 1 });
$orders = HapaxIDs->new('dbix-orders');
my $shop = Shop->connect(@connect);
my $n = shift @ARGV;

if ($n eq 'create') {
    $shop->storage->dbh_do(sub { $_[1]->do('CREATE TABLE recipe_dbix (id bigint PRIMARY KEY, what text NOT NULL)') });
    exit;
}
my $rows = $shop->resultset('Order');
$rows->create({ what => 'before the fork' });
$shop->storage->disconnect;    # a connection is not shared, either
my $child = fork // die "no fork: $!\n";
$rows->create({ what => "order $_" }) for 1 .. $n;
$rows->populate([map { { id => $orders->next, what => "bulk $_" } } 1 .. $n]);    # in one statement, without insert
if ($child) {
    waitpid $child, 0;
    exit($? != 0);
}
