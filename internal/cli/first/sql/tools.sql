-- gem dev runs this file at each start and whenever you save it, so every statement can run again.

create table if not exists orders (
  id       bigint  primary key,
  total    numeric not null,
  refunded numeric not null default 0
);
insert into orders (id, total) values (1, 40), (2, 250), (3, 300) on conflict do nothing;
insert into orders (id, total) select id, 100 from generate_series(11, 40) id on conflict do nothing;

-- The tool shop.refund. Its changes and the receipt of the call are committed together, or not at all.
create or replace function tools.shop_refund(input jsonb) returns jsonb language plpgsql as $$
declare
  amount numeric := input ->> 'amount';
  paid   orders;
begin
  update orders o set refunded = o.refunded + amount
  where o.id = (input ->> 'order_id')::bigint and o.refunded + amount <= o.total
  returning o.* into paid;
  if not found then
    raise exception 'There is no order % with % left to refund.', input ->> 'order_id', amount
      using errcode = 'GM100', detail = '{"error_code": "not_refundable"}';
  end if;
  perform gem.wrote('orders', 'update', paid.id);
  return jsonb_build_object('refunded', amount);
end
$$;
