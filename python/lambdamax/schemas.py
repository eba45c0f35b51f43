"""The columns of the files of facts that a user may write: those of the package data, and what their cells may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lambdamax.accelerators import WIRINGS
from lambdamax.prices import EVIDENCE, PLANS
from lambdamax.tables import Check, Column, any_text, count, date, hub_id, name, one_of, positive


def _columns(required: Mapping[str, Check], optional: Mapping[str, Check]) -> tuple[Column, ...]:
    return (
        *(Column(name, required=True, check=check) for name, check in required.items()),
        *(Column(name, required=False, check=check) for name, check in optional.items()),
    )


def _all(check: Check, names: str) -> dict[str, Check]:
    return dict.fromkeys(names.split(), check)


MODELS: Final = _columns(
    {"name": name, "config_file": any_text, "source_url": any_text, "source_date": date},
    {
        "hub_id": hub_id,
        **_all(positive, "published_parameters_1e9 published_active_parameters_1e9"),
        **_all(any_text, "published_source upstream_url fidelity notes"),
    },
)
ACCELERATORS: Final = _columns(
    {
        "id": name,
        **_all(any_text, "name vendor architecture"),
        **_all(positive, "memory_bytes memory_bandwidth_bytes_per_s bf16_dense_flops"),
        "scaleup_domain_size": count,
        "scaleup_wiring": one_of(WIRINGS),
        "default_profile": any_text,
        "source_url": any_text,
        "source_date": date,
    },
    {
        **_all(positive, "driver_reported_mib fp8_dense_flops fp4_dense_flops int8_dense_ops"),
        **_all(positive, "scaleup_bytes_per_s_per_direction pcie_bytes_per_s_per_direction"),
        **_all(any_text, "form_factor memory_type memory_label_gb memory_bytes_basis scaleup_tech scaleup_topology"),
        **_all(any_text, "scaleup_vendor_quote pcie_gen tdp_w recalled_fields notes"),
    },
)
PRICES: Final = _columns(
    {
        **_all(any_text, "accelerator_id provider"),
        "accelerators_per_instance": count,
        "instance_usd_per_hour": positive,
        "source_url": any_text,
        "date": date,
        "evidence_kind": one_of(EVIDENCE),
    },
    {
        "plan": one_of(PLANS),
        "usd_per_accelerator_hour": positive,
        **_all(any_text, "left_out region instance_type pricing notes"),
    },
)
